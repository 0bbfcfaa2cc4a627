"""R033: under the priority policy a preempted request goes back by (priority, arrival time, id), as in vLLM: those of its
own priority that arrived earlier go first. It never waits longer than for them, since nobody who comes later overtakes."""

from __future__ import annotations

from tests.scheduler.desk import Desk


def test_it_waits_for_the_earlier_ones_of_its_priority_and_for_no_later_one() -> None:
    desk = Desk(policy="priority", max_num_seqs=1)
    young = desk.add("young", 4, max_tokens=6)
    young.arrival_time = 10.0
    desk.step()
    for number in range(3):
        desk.add(f"earlier{number}", 4, max_tokens=2)
    desk.scheduler.preempt(young)
    assert desk.waiting == ["earlier0", "earlier1", "earlier2", "young"]
    order: list[str] = []
    for step in range(40):
        if step < 20:
            late = desk.add(f"later{step}", 4, max_tokens=2)
            late.arrival_time += 20
            desk.scheduler.set_priority(late, 0)
        plan = desk.step()
        order += [new.request_id for new in (*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs)]
        if "young" in order:
            break
    assert order == ["earlier0", "earlier1", "earlier2", "young"]


def test_under_fcfs_it_is_the_next_one() -> None:
    desk = Desk(max_num_seqs=1)
    request = desk.add("a", 4)
    desk.step()
    desk.add("b", 4)
    desk.scheduler.preempt(request)
    assert desk.waiting == ["a", "b"]
