"""Why each request did or did not get tokens: the verdict, its numbers, and the line that decided."""

from __future__ import annotations

import linecache

import pytest

from nbengine.scheduler import scheduler as stock
from nbengine.scheduler.decision import Verdict
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler
from tests.scheduler.desk import Desk


def test_admitted_then_prefill_then_decode() -> None:
    desk = Desk(max_num_batched_tokens=8)
    desk.add("a", 14)
    first, second, third = desk.explained_step(), desk.explained_step(), desk.explained_step()
    assert (first["a"].verdict, first["a"].numbers) == (
        Verdict.ADMITTED,
        {"tokens": 8, "hit": 0, "remaining": 6, "chunked": 1},
    )
    assert (second["a"].verdict, second["a"].numbers) == (Verdict.PREFILL, {"tokens": 6, "remaining": 0, "chunked": 0})
    assert (third["a"].verdict, third["a"].numbers) == (Verdict.DECODE, {"tokens": 1, "remaining": 0, "chunked": 0})


def test_a_spent_budget_is_named_for_running_and_waiting_requests() -> None:
    desk = Desk(max_num_batched_tokens=8, max_num_seqs=8)
    desk.add("a", 30)
    desk.add("b", 4)
    assert desk.explained_step()["b"].verdict is Verdict.BUDGET
    desk.scheduler.config.scheduler.max_num_batched_tokens = 12
    assert desk.explained_step()["a"].numbers["tokens"] == 12
    decision = desk.explained_step()["b"]
    assert (decision.verdict, decision.numbers["tokens"]) == (Verdict.ADMITTED, 2)
    desk.scheduler.config.scheduler.max_num_batched_tokens = 1
    decision = desk.explained_step()["b"]
    assert (decision.verdict, decision.numbers) == (Verdict.BUDGET, {"budget": 1, "used": 1})


def test_max_num_seqs_is_named_for_all_who_wait() -> None:
    desk = Desk(max_num_seqs=1)
    for name in "abc":
        desk.add(name, 4)
    decisions = desk.explained_step()
    for name in "bc":
        assert (decisions[name].verdict, decisions[name].numbers) == (Verdict.MAX_NUM_SEQS, {"running": 1, "limit": 1})


def test_a_head_without_room_and_those_behind_it() -> None:
    desk = Desk(usable=6)
    desk.add("runner", 12)
    desk.step()
    desk.add("big", 20)
    desk.add("small", 1)
    decisions = desk.explained_step()
    big, small = decisions["big"], decisions["small"]
    assert (big.verdict, big.numbers) == (Verdict.RESERVE, {"needs": 5, "free": 2, "watermark": 0})
    assert (small.verdict, small.cause) == (Verdict.BEHIND, "big")
    desk.scheduler.config.scheduler.scheduler_reserve_full_isl = False
    assert desk.explained_step()["big"].verdict is Verdict.NO_BLOCKS


def test_the_watermark_is_one_of_the_numbers() -> None:
    desk = Desk(usable=9, watermark=0.5)
    desk.add("runner", 12)
    desk.step()
    desk.add("next", 8)
    assert desk.explained_step()["next"].numbers == {"needs": 2, "free": 5, "watermark": 5}


def test_chunked_prefill_off() -> None:
    desk = Desk(enable_chunked_prefill=False, max_num_batched_tokens=16, max_model_len=16)
    desk.add("a", 10)
    desk.add("b", 10)
    decision = desk.explained_step()["b"]
    assert (decision.verdict, decision.numbers) == (Verdict.CHUNK_TOO_BIG, {"needs": 10, "budget": 6})


def test_a_victim_and_what_its_preemption_does_to_the_others() -> None:
    desk = Desk(usable=4, enable_prefix_caching=False, max_model_len=16)
    desk.add("a", 7)
    desk.add("b", 7)
    desk.step()
    desk.step()
    desk.add("c", 2)
    decisions = desk.explained_step()
    assert decisions["a"].verdict is Verdict.DECODE
    victim = decisions["b"]
    assert (victim.verdict, victim.cause) == (Verdict.PREEMPTED, "a")
    assert victim.numbers == {"needs": 1, "free": 0, "computed": 8, "freed": 2}
    assert victim.line == Scheduler.choose_victim.__code__.co_firstlineno
    assert (decisions["c"].verdict, decisions["c"].cause) == (Verdict.ADMISSION_OFF, "b")


def test_a_request_that_is_its_own_victim_ends_the_pass() -> None:
    desk = Desk(usable=5, enable_prefix_caching=False, max_model_len=20, policy="priority")
    desk.add("low", 7, priority=5)
    desk.step()
    desk.add("high", 12, priority=1)
    desk.step()
    decisions = desk.explained_step()
    assert decisions["low"].verdict is Verdict.SELF_PREEMPTED and decisions["low"].cause is None
    assert (decisions["high"].verdict, decisions["high"].cause) == (Verdict.PASS_ENDED, "low")


def test_a_victim_that_had_tokens_has_one_decision_only() -> None:
    desk = Desk(usable=5, enable_prefix_caching=False, max_model_len=20, policy="priority")
    desk.add("low", 5, priority=5)
    desk.step()
    desk.add("high", 11, priority=1)
    desk.step()
    desk.step()
    decisions = desk.explained_step()
    assert (decisions["low"].verdict, decisions["low"].cause) == (Verdict.PREEMPTED, "high")
    assert decisions["low"].numbers == {"needs": 1, "free": 0, "computed": 7, "freed": 2}


@pytest.mark.parametrize("pause", ["new", "all"])
def test_paused(pause: str) -> None:
    desk = Desk()
    desk.add("a", 4)
    desk.step()
    desk.add("b", 4)
    desk.scheduler.pause_state = pause  # type: ignore[assignment]
    decisions = desk.explained_step()
    assert decisions["b"].verdict is Verdict.PAUSED
    assert decisions["a"].verdict is (Verdict.PAUSED if pause == "all" else Verdict.DECODE)


def test_the_line_is_the_rules_own() -> None:
    desk = Desk(max_num_seqs=1)
    desk.add("a", 4)
    desk.add("b", 4)
    decision = desk.explained_step()["b"]
    assert decision.file == ""
    assert "MAX_NUM_SEQS" in linecache.getline(stock.__file__, decision.line)


class Gentle(Scheduler):
    def choose_victim(self) -> Request:
        return self.running[0]


def test_a_rule_of_ones_own_is_named_with_its_file_and_line() -> None:
    desk = Desk(usable=4, cls=Gentle, enable_prefix_caching=False, max_model_len=16)
    desk.add("a", 7)
    desk.add("b", 7)
    desk.step()
    desk.step()
    decision = desk.explained_step()["a"]
    assert decision.verdict is Verdict.SELF_PREEMPTED
    assert decision.file == __file__ and "def choose_victim" in linecache.getline(__file__, decision.line)
    assert decision.rule == "Gentle.choose_victim" and desk.explained_step()["b"].rule == ""


def test_nothing_is_noted_without_an_observer() -> None:
    desk = Desk()
    desk.add("a", 4)
    desk.step()
    assert desk.scheduler.decisions is None


def test_a_list_that_is_not_emptied_keeps_growing() -> None:
    desk = Desk()
    desk.scheduler.decisions = []
    desk.add("a", 4)
    desk.step()
    desk.add("b", 4)
    desk.step()
    assert [(d.request_id, d.verdict) for d in desk.scheduler.decisions] == [
        ("a", Verdict.ADMITTED),
        ("a", Verdict.DECODE),
        ("b", Verdict.ADMITTED),
    ]
