"""R052: the books add up after each phase of a chunked prompt, aborts in mid-step included: no false alarm."""

from __future__ import annotations

from nbengine.scheduler.invariants import violations
from tests.scheduler.desk import Desk


def test_no_false_alarm_in_any_phase() -> None:
    desk = Desk(max_num_batched_tokens=8)
    desk.add("chunked", 30, max_tokens=3)
    desk.add("other", 5, max_tokens=3)
    while desk.scheduler.has_unfinished_requests():
        plan = desk.scheduler.schedule()
        assert violations(desk.scheduler) == []
        output = desk.execute(plan)
        assert violations(desk.scheduler) == []
        if plan.step == 2:
            desk.add("late", 9)
            desk.scheduler.finish_requests("late")
        desk.scheduler.update_from_output(plan, output)
        assert violations(desk.scheduler) == []


def test_an_abort_between_the_phases() -> None:
    desk = Desk(max_num_batched_tokens=8)
    desk.add("chunked", 30)
    plan = desk.scheduler.schedule()
    output = desk.execute(plan)
    desk.scheduler.finish_requests("chunked")
    assert violations(desk.scheduler) == []
    desk.scheduler.update_from_output(plan, output)
    assert violations(desk.scheduler) == [] and desk.num_free == 64
