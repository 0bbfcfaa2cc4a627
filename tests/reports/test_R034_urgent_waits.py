"""R034: an urgent request never preempts a running one in order to be admitted, as in vLLM: it waits at the head of the
queue, and the decision says for what. Ties break by arrival time, then by id as a string."""

from __future__ import annotations

from nbengine.scheduler.decision import Verdict
from tests.scheduler.desk import Desk


def test_no_seat() -> None:
    desk = Desk(policy="priority", max_num_seqs=1)
    desk.add("low", 4, priority=9)
    desk.step()
    desk.add("high", 4, priority=0)
    decision = desk.explained_step()["high"]
    assert (decision.verdict, decision.numbers) == (Verdict.MAX_NUM_SEQS, {"running": 1, "limit": 1})
    assert desk.running == ["low"] and desk.scheduler.num_preemptions == 0


def test_no_blocks() -> None:
    desk = Desk(usable=4, policy="priority", max_model_len=16)
    desk.add("low", 10, priority=9, max_tokens=2)
    desk.step()
    desk.add("high", 8, priority=0)
    decision = desk.explained_step()["high"]
    assert (decision.verdict, decision.numbers) == (Verdict.RESERVE, {"needs": 2, "free": 1, "watermark": 0})
    assert desk.scheduler.num_preemptions == 0 and "low" in desk.reasons
    assert list(desk.step().num_scheduled_tokens) == ["high"]


def test_ties() -> None:
    desk = Desk(policy="priority", max_num_seqs=1)
    for name, priority, arrival in (("z", 1, 0.0), ("b", 0, 5.0), ("a", 0, 5.0), ("c", 0, 4.0)):
        request = desk.add(name, 4, priority=9)
        request.arrival_time = arrival
        desk.scheduler.set_priority(request, priority)
    assert desk.waiting == ["c", "a", "b", "z"]
