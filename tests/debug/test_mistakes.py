"""What a person does wrong, or in an odd order: said clearly, and nothing moves or breaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbengine import LLM, SamplingParams
from nbengine.errors import ConfigError, InvalidRequestError, NBEngineError, PhaseError, TraceError
from nbengine.observe.breakpoints import Hit
from tests.debug.crowd import crowded
from tests.models.fixtures import one_thread, tiny_model
from tests.observe.engines import make_llm

__all__ = ["one_thread", "tiny_model"]

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


# ------------------------------------------------------------------------------------------------ who holds the engine


def test_a_cell_that_is_run_again_gets_the_same_debugger() -> None:
    llm = make_llm()
    dbg = llm.debug()
    assert llm.debug() is dbg
    with pytest.raises(ValueError, match=r"watched already: go on with that Debugger, or detach\(\) it first"):
        llm.debug(undo=False)
    dbg.break_on(step=2, once=True)  # the refusal has not taken its gate away
    dbg.add("hello", max_tokens=4)
    assert dbg.run().step == 2
    dbg.detach()
    assert llm.debug() is not dbg


def test_a_detached_debugger_moves_and_changes_nothing() -> None:
    llm = make_llm()
    dbg = llm.debug()
    name = dbg.add("hello", max_tokens=9)
    dbg.step(2)
    dbg.detach()
    newer = llm.debug()
    moves = (
        dbg.step, dbg.run, dbg.schedule, dbg.back, lambda: dbg.goto(0), lambda: dbg.add("x"), lambda: dbg.preempt(name),
        lambda: dbg.set(max_num_seqs=2), dbg.fork, lambda: dbg.abort(name), dbg.phase,
    )  # fmt: skip
    for move in moves:
        with pytest.raises(PhaseError, match=r"detached: llm.debug\(\) attaches a new one"):
            move()
    dbg.post({"name": "step", "args": {}})
    assert "detached" in dbg._source.status()["message"]
    assert newer.core.step_count == 2 and dbg.view.step == 2 and dbg.explain(name)
    newer.step()
    newer.core.check_invariants()


# ------------------------------------------------------------------------------------------------------ wrong arguments


def test_numbers_that_are_none() -> None:
    dbg = crowded()
    dbg.step(3)
    before = dbg.view.canonical()
    for call, words in (
        (lambda: dbg.back(1.0), r"back\(\): the number of steps must be a whole number, got 1.0"),
        (lambda: dbg.back("1"), "got '1'"),
        (lambda: dbg.goto("1"), "step must be a whole number, got '1'"),
        (lambda: dbg.step("3"), r"step\(\): the number of steps must be a whole number"),
        (lambda: dbg.run(max_steps="2"), "max_steps must be a whole number"),
        (lambda: dbg.run(until=1.5), "until is a predicate over the view, the name of an event or the number"),
        (lambda: dbg.run(until=True), "got True"),
        (lambda: dbg.why_not("r1", step="1"), "step must be a whole number"),
        (lambda: dbg.set_priority("r1", "high"), "priority must be a whole number, got 'high'"),
        (lambda: dbg.abort(["r1"]), r"abort\('r1', 'r2'\)"),
        (lambda: dbg.compare(5), "a Debugger or a Trace, got int"),
        (lambda: dbg.break_on(step="3"), "step cannot be '3'"),
        (lambda: dbg.break_on(request=5), "request cannot be 5"),
        (lambda: dbg.break_when("x < 4"), "when must be a function of the view"),
        (lambda: dbg.break_on("step_slower_than", seconds="x"), "seconds cannot be 'x'"),
        (lambda: dbg.break_on("finished", foo=1), "A breakpoint has no foo; it has: event, request, step"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=words):
            call()
    for call, words in (
        (lambda: dbg.step(0), "at least 1, got 0"),
        (lambda: dbg.run(max_steps=-3), "max_steps must be at least 1"),
        (lambda: dbg.break_on(step=-4), "must not be negative"),
        (lambda: dbg.break_on(block=9999), "There is no block 9999"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            call()
    for call, words in (
        (lambda: dbg.goto(50), r"Step 50 has not happened yet: the engine is at 3. run\(until=50\) goes there"),
        (lambda: dbg.back(99), r"back\(99\) asks for more than there is: 3 steps so far"),
        (lambda: dbg.history(request="nope"), "There is no request 'nope'"),
        (lambda: dbg.history(block=999), "There is no block 999"),
    ):  # fmt: skip
        with pytest.raises(LookupError, match=words):
            call()
    assert len(dbg.breakpoints) == 0 and repr(dbg.breakpoints) == "no breakpoints"
    assert dbg.view.canonical() == before and isinstance(dbg.core.step_count, int)


@pytest.mark.parametrize(
    "options",
    [{"max_num_batched_tokens": 10.5}, {"enable_chunked_prefill": "no"}, {"max_num_seqs": "4"}, {"policy": "lifo"}],
)
def test_options_of_the_wrong_type_are_refused_whole(options: dict[str, Any]) -> None:
    dbg = crowded()
    dbg.step()
    with pytest.raises(ConfigError, match=f"{next(iter(options))} cannot be "):
        dbg.set(watermark=0.1, **options)
    assert dbg.core.config.scheduler.watermark == 0 and dbg.view.options == {}
    with pytest.raises(ConfigError, match="cannot be "):
        dbg.fork(**options)
    dbg.run()
    dbg.core.check_invariants()


def test_a_fork_refuses_what_would_do_nothing() -> None:
    dbg = crowded()
    for name in ("max_model_len", "async_scheduling", "num_speculative_tokens"):
        with pytest.raises(ConfigError, match=f"A fork cannot change '{name}'"):
            dbg.fork(**{name: 1})


def test_commands_of_the_lab_that_lack_something() -> None:
    dbg = crowded()

    def said(name: str, **args: Any) -> str:
        dbg.post({"name": name, "args": args})
        dbg.mover.gate.drain()
        return str(dbg._source.status()["message"])

    assert said("goto") == "The command needs 'step'."
    assert said("add") == "The command needs 'prompt'."
    assert said("step", count="x") == "count must be a whole number, got 'x'."
    assert said("abort", request="nobody") == "There is no live request 'nobody' to abort."
    assert said("set", max_num_batched_tokens=12.5).startswith("max_num_batched_tokens cannot be 12.5")


# --------------------------------------------------------------------------------------------------------- odd orders


def test_an_edited_token_has_a_log_probability_or_none(tiny_model: Callable[[str], Path]) -> None:
    llm = LLM(str(tiny_model("llama")), num_gpu_blocks_override=26, block_size=4, max_model_len=48, skip_tokenizer_init=True)
    dbg = llm.debug()
    dbg.add([3, 4, 5], "a", max_tokens=3, logprobs=2, **GREEDY)
    dbg.schedule()
    reported = dbg.execute().logprobs
    assert reported is not None and reported[0] is not None
    first, second = reported[0][0].token_ids[1:3]
    other = next(token for token in range(10) if token not in (first, second))
    for token, rank in ((other, None), (second, 2), (first, 1)):
        dbg.edit_token("a", token)
        dbg.update()
        (position,) = dbg.output("a").outputs[0].logprobs or [{}]
        assert (next(iter(position)), position[token].rank) == (token, rank)
        assert math.isnan(position[token].logprob) == (rank is None)
        dbg.back()
        dbg.schedule()
        dbg.execute()
    dbg.run()
    assert len(dbg.output("a").outputs[0].token_ids) == 3


def test_no_token_is_edited_that_nobody_will_take() -> None:
    for lose in ("abort", "preempt"):
        dbg = make_llm().debug()
        dbg.add("hello", "a", max_tokens=4, **GREEDY)
        dbg.add("other", "b", max_tokens=4, **GREEDY)
        dbg.schedule()
        dbg.execute()
        getattr(dbg, lose)("a")
        with pytest.raises(InvalidRequestError, match=r"no live request 'a'|was preempted since"):
            dbg.edit_token("a", 7)
        for token in (True, 3.0, None):
            with pytest.raises(TypeError, match="token must be a whole number"):
                dbg.edit_token("b", token)  # type: ignore[arg-type]
        dbg.update()
        dbg.run()
        assert dbg.trace.records and dbg.explain("b")


def test_breakpoints_see_after_a_rewind_what_they_saw_before() -> None:
    dbg = crowded()
    dbg.break_when(lambda view: view.free_blocks < 4)
    dbg.break_on("finished", count=2)

    def stops() -> list[Hit]:
        found = []
        while (hit := dbg.run()).number:
            found.append(hit)
        return found

    first = stops()
    assert {hit.number for hit in first} == {1, 2}
    dbg.goto(0)
    assert stops() == first
    dbg.goto(first[0].step)
    assert stops() == first[first[0].phase == "schedule" :]


def test_run_until_a_step_that_is_here_or_past_moves_nothing() -> None:
    dbg = crowded()
    dbg.step(3)
    assert dbg.run(until=3).why == "step 3 is next" and dbg.core.step_count == 3
    assert dbg.run(until=1).why == "the engine is past step 1: goto(1) goes back"
    dbg.schedule()
    assert dbg.run(until=3).why.startswith("the engine is past") and dbg.view.phase == "execute"


def test_a_change_by_hand_that_a_breakpoint_names_stops_the_next_run() -> None:
    dbg = make_llm().debug()
    dbg.break_on("added", once=True)
    dbg.add("hello", max_tokens=3)
    assert dbg.run().number == 1 and dbg.core.step_count == 0
    assert dbg.run().why == "nothing left to do"


def test_a_stop_that_was_passed_by_hand_is_forgotten() -> None:
    dbg = make_llm().debug()
    dbg.break_on("added", once=True)
    dbg.add("hello", max_tokens=3)
    dbg.schedule()
    assert dbg.run().why == "nothing left to do"


def test_a_recording_that_failed_does_not_hold_the_debugger(tmp_path: Path) -> None:
    dbg = make_llm().debug()
    recording = dbg.record_to(tmp_path / "run.nbtrace")
    recording.flush()
    recording.problem = "the disk is full"
    with pytest.raises(TraceError, match="not whole: the disk is full"):
        dbg.detach()
    assert not dbg.is_attached and dbg.core.gate is None


def test_a_longer_run_differs_from_a_shorter_one_both_ways() -> None:
    longer, shorter = crowded(), crowded()
    longer.run(until=5)
    shorter.run(until=3)
    for one, other in ((longer, shorter), (shorter, longer)):
        found = one.compare(other).first_difference
        assert found is not None and (found.step, found.what) == (3, "lengths")


def test_several_answers_are_found_by_the_id_that_asked_for_them() -> None:
    dbg = make_llm().debug()
    dbg.add("hello", "a", n=2, max_tokens=3)
    with pytest.raises(LookupError, match="'a' asks for several answers, each a request here: 0_a, 1_a"):
        dbg.explain("a")
    with pytest.raises(InvalidRequestError, match="its answers are requests of their own: 0_a, 1_a"):
        dbg.preempt("a")
    dbg.break_on("finished", request="a")
    assert "finished" in dbg.run().why


def test_a_fork_keeps_what_was_said_of_the_prompt() -> None:
    dbg = make_llm().debug()
    dbg.add("hello", "q", prompt_logprobs=1, max_tokens=6, **GREEDY)
    dbg.step(2)
    fork = dbg.fork()
    dbg.run()
    fork.run()
    here, there = dbg.output("q"), fork.output("q")
    assert here.prompt_logprobs == there.prompt_logprobs is not None
    assert here.num_cached_tokens == there.num_cached_tokens == 0


def test_going_back_before_the_requests_of_a_call_is_said_to_it() -> None:
    llm = make_llm()
    dbg = llm.debug()
    dbg.add("first", max_tokens=2)
    dbg.step()
    asked: list[object] = []

    def once(view: object) -> None:
        if not asked:
            asked.append(dbg.mover.gate.submit(lambda: dbg.rewind_to(0)))

    dbg.break_when(once)
    with pytest.raises(NBEngineError, match=r"put back to a moment before they came\. Ask again"):
        llm.generate("second", SamplingParams(max_tokens=5), use_tqdm=False)
    dbg.core.check_invariants()
