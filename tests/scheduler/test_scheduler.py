"""What a caller, or a person with a subclass in a notebook cell, can do with a scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from nbengine.errors import DuplicateRequestError, InvalidRequestError
from nbengine.protocol import FinishReason
from nbengine.scheduler.request import Request, RequestStatus
from nbengine.scheduler.request_queue import KeyedQueue, RequestQueue
from nbengine.scheduler.scheduler import Scheduler
from tests.scheduler.desk import EOS, Desk


class ShortestFirst(Scheduler):
    def make_queue(self) -> RequestQueue:
        return KeyedQueue(lambda request: request.num_prompt_tokens)


class Youngest(Scheduler):
    def waiting_key(self, request: Request) -> Any:
        return -request.arrival_time


class Cheapest(Scheduler):
    def choose_victim(self) -> Request:
        return min(self.running, key=lambda request: request.num_computed_tokens)


def test_an_order_of_admission_of_ones_own() -> None:
    desk = Desk(cls=ShortestFirst, max_num_seqs=1)
    for name, length in (("long", 9), ("short", 2), ("middle", 5)):
        desk.add(name, length, max_tokens=1)
    order = [list(desk.step().num_scheduled_tokens) for _ in range(3)]
    assert order == [["short"], ["middle"], ["long"]]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_key_of_ones_own(policy: str) -> None:
    desk = Desk(cls=Youngest, max_num_seqs=1, policy=policy)
    for name in "abc":
        desk.add(name, 3, max_tokens=1)
    assert desk.waiting == ["c", "b", "a"]


def test_a_victim_of_ones_own() -> None:
    desk = Desk(usable=4, cls=Cheapest, enable_prefix_caching=False, max_model_len=16)
    desk.add("small", 2, max_tokens=9)
    desk.add("large", 11, max_tokens=3)
    assert desk.run() > 0
    assert desk.scheduler.num_preemptions == 1 and desk.reasons == {"small": "length", "large": "length"}
    assert len(desk.tokens["small"]) == 9


def test_equal_keys_keep_their_order() -> None:
    queue = KeyedQueue(lambda request: 0)
    desk = Desk()
    requests = [desk.add(name, 3) for name in "abcd"]
    for request in requests:
        queue.add(request)
    queue.remove(requests[1])
    assert [request.request_id for request in queue] == ["a", "c", "d"]
    assert [queue.pop().request_id for _ in range(len(queue))] == ["a", "c", "d"]
    with pytest.raises(ValueError, match="not in the queue"):
        queue.remove(requests[0])


def test_request_ids_compare_as_strings() -> None:
    desk = Desk(policy="priority")
    for name in ("r2", "r10"):
        desk.scheduler.add_request(_same_arrival(desk, name))
    assert desk.waiting == ["r10", "r2"]


def _same_arrival(desk: Desk, name: str) -> Request:
    other = Desk(policy="priority")
    return other.add(name, 3)


def test_two_live_requests_cannot_share_an_id_but_an_ended_one_gives_it_up() -> None:
    desk = Desk()
    desk.add("a", 3)
    with pytest.raises(DuplicateRequestError, match="'a' is live already"):
        desk.add("a", 4)
    desk.scheduler.finish_requests("a")
    desk.add("a", 4)
    plan = desk.step()
    assert plan.finished_req_ids == ["a"] and list(plan.num_scheduled_tokens) == ["a"]


def test_finishing_from_outside() -> None:
    desk = Desk()
    a, b = desk.add("a", 3), desk.add("b", 3)
    desk.step()
    desk.add("c", 3)
    assert desk.scheduler.finish_requests(["c", "ghost", "a", "a"]) == ["c", "a"]
    assert desk.scheduler.finish_requests("b", FinishReason.STOP) == ["b"]
    assert (a.status, a.finish_reason, b.finish_reason) == (RequestStatus.FINISHED, FinishReason.ABORT, FinishReason.STOP)
    assert desk.num_free == 64 and not desk.scheduler.requests
    assert desk.scheduler.has_requests_or_finished_to_announce() and not desk.scheduler.has_unfinished_requests()
    assert desk.step().finished_req_ids == ["c", "a", "b"]
    assert not desk.scheduler.has_requests_or_finished_to_announce()


def test_the_token_of_a_request_aborted_in_mid_step_is_lost() -> None:
    desk = Desk()
    desk.add("a", 3)
    desk.add("b", 3)
    plan = desk.schedule()
    output = desk.execute(plan)
    desk.scheduler.finish_requests("a")
    desk.add("a", 3)
    outputs = desk.update(plan, output)
    assert [entry.request_id for entry in outputs.outputs] == ["b"]


def test_preempting_by_hand_in_mid_step_loses_nothing_but_time() -> None:
    alone = Desk()
    alone.add("a", 6)
    alone.run()
    desk = Desk()
    request = desk.add("a", 6)
    for _ in range(3):
        plan = desk.schedule()
        output = desk.execute(plan)
        desk.scheduler.preempt(request)
        assert not desk.update(plan, output).outputs
        desk.step()
    desk.run()
    assert desk.tokens == alone.tokens and request.num_preemptions == 3


def test_only_a_running_request_can_be_preempted() -> None:
    desk = Desk()
    request = desk.add("a", 6)
    with pytest.raises(InvalidRequestError, match="'a' is waiting"):
        desk.scheduler.preempt(request)


def test_changing_a_priority_moves_the_request_in_its_queue() -> None:
    desk = Desk(policy="priority")
    desk.add("a", 3)
    b = desk.add("b", 3)
    desk.scheduler.set_priority(b, -1)
    assert desk.waiting == ["b", "a"]
    desk.step()
    desk.scheduler.set_priority(b, 7)
    assert desk.scheduler.choose_victim() is b


def test_first_come_first_served_whatever_the_priority() -> None:
    desk = Desk()
    a, _b = desk.add("a", 3), desk.add("b", 3)
    desk.scheduler.set_priority(a, 5)
    assert desk.waiting == ["a", "b"] and a.priority == 5


def test_pausing() -> None:
    desk = Desk()
    desk.add("a", 3)
    desk.step()
    desk.add("b", 3)
    desk.scheduler.pause_state = "new"
    assert desk.scheduler.has_unfinished_requests()
    assert list(desk.step().num_scheduled_tokens) == ["a"]
    desk.scheduler.pause_state = "all"
    assert not desk.scheduler.has_unfinished_requests()
    assert desk.step().num_scheduled_tokens == {}
    desk.scheduler.pause_state = "none"
    assert list(desk.step().num_scheduled_tokens) == ["a", "b"]


def test_the_plan_names_the_first_token_that_each_running_request_computes() -> None:
    desk = Desk(max_num_batched_tokens=4, max_num_seqs=2)
    desk.add("a", [5, 6, 7, 8, 9, 10])
    desk.step()
    assert desk.step().scheduled_cached_reqs.next_token_ids == [9]
    sampled = desk.tokens["a"][-1]
    columns = desk.step().scheduled_cached_reqs
    assert (columns.request_ids, columns.num_computed_tokens, columns.next_token_ids) == (["a"], [6], [sampled])


def test_describe_has_a_line_for_each_request() -> None:
    desk = Desk()
    desk.add("first", 5)
    desk.step()
    desk.add("second", 7, priority=3)
    head, first, second = desk.scheduler.describe().splitlines()
    assert head == "step 1: 1 running, 1 waiting, 62 of 64 blocks free, budget 64 tokens, policy fcfs, pause none"
    assert first.startswith("first: running, 5 prompt + 1 of 8 output tokens, 5 computed (0 in flight), 2 blocks")
    assert second.startswith("second: waiting, 7 prompt + 0 of 8 output tokens") and "priority 3" in second


@pytest.mark.parametrize(
    ("params", "outputs", "reason", "stop_reason", "count"),
    [
        ({"ignore_eos": False}, [5, EOS], "stop", None, 2),
        ({"ignore_eos": True}, [5, EOS], "length", None, 8),
        ({"ignore_eos": False, "stop_token_ids": [EOS]}, [5, EOS], "stop", None, 2),  # eos wins over an equal stop id
        ({"ignore_eos": True, "stop_token_ids": [EOS]}, [5, EOS], "stop", EOS, 2),
        ({"stop_token_ids": [9]}, [5, 9], "stop", 9, 2),
        ({"stop_token_ids": [9], "min_tokens": 2}, [9, 5, 9], "stop", 9, 3),
        ({"max_tokens": 1, "stop_token_ids": [9]}, [9], "stop", 9, 1),
        ({"max_tokens": None}, [], "length", None, 251),
    ],
)
def test_stopping(params: dict[str, Any], outputs: list[int], reason: str, stop_reason: int | None, count: int) -> None:
    desk = Desk()
    desk.sampler.script("a", outputs, None)
    request = desk.add("a", 5, **params)
    desk.run()
    assert (request.finish_reason, request.stop_reason, len(desk.tokens["a"])) == (reason, stop_reason, count)


def test_the_models_limit_holds_under_min_tokens() -> None:
    desk = Desk(max_model_len=10)
    desk.add("a", 6, max_tokens=50, min_tokens=20)
    desk.run()
    assert desk.reasons == {"a": "length"} and len(desk.tokens["a"]) == 4


def test_a_salt_keeps_equal_prompts_apart() -> None:
    desk = Desk()
    prompt = list(range(12))
    desk.add("a", prompt)
    desk.add("b", prompt, cache_salt="tenant")
    desk.add("c", prompt)
    desk.step()
    assert desk.cached == {"a": 0, "b": 0, "c": 8}


def test_skipping_the_cache_is_no_lookup() -> None:
    desk = Desk()
    prompt = list(range(12))
    desk.add("a", prompt)
    desk.add("b", prompt, skip_reading_prefix_cache=True)
    plan = desk.schedule()
    stats = desk.update(plan, desk.execute(plan)).stats
    assert stats is not None and stats.prefix_cache.requests == 1 and desk.cached["b"] == 0
