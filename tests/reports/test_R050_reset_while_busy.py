"""R050: reset_prefix_cache says False, and why, while a request holds blocks; True afterwards, and nothing is cached."""

from __future__ import annotations

from tests.scheduler.desk import Desk

PROMPT = list(range(9))


def test_false_with_a_reason_then_true() -> None:
    desk = Desk()
    desk.add("a", PROMPT, max_tokens=3)
    desk.step()
    assert desk.scheduler.reset_prefix_cache() is False
    assert desk.scheduler.reset_refusal() == "3 of 64 KV blocks are held by running requests: a."
    desk.run()
    assert desk.scheduler.reset_refusal() is None
    assert desk.scheduler.reset_prefix_cache() is True
    desk.add("b", PROMPT)
    desk.step()
    assert desk.cached == {"a": 0, "b": 0}


def test_by_force_the_running_ones_start_over_in_the_same_step() -> None:
    desk = Desk()
    desk.add("a", PROMPT)
    desk.add("b", PROMPT)
    desk.step()
    assert desk.scheduler.reset_prefix_cache(reset_running_requests=True) is True
    assert desk.waiting == ["a", "b"] and desk.num_free == 64
    plan = desk.step()
    assert [resumed.request_id for resumed in plan.scheduled_resumed_reqs] == ["a", "b"] and not plan.preempted_req_ids
