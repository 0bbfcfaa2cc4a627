"""R029, the scheduler's part: when no step can move anybody, one look tells each waiting request's reason, with numbers, and
changes nothing. (The engine that stops on it is tested beside the engine.)"""

from __future__ import annotations

from nbengine.scheduler.decision import Verdict
from nbengine.scheduler.request import Request
from nbengine.scheduler.rules import AdmissionRule
from tests.scheduler.desk import Desk
from tests.scheduler.state import state_of


class Refuse(AdmissionRule):
    def refusal(self, request: Request) -> tuple[Verdict, dict[str, int]] | None:
        return Verdict.MAX_LORAS, {"active": 1, "limit": 1}


def test_a_policy_that_refuses_everybody() -> None:
    desk = Desk()
    desk.scheduler.rules.append(Refuse())
    for name in "abc":
        desk.add(name, 5)
    before = state_of(desk.scheduler)
    plan, reasons = desk.scheduler.preview()
    assert state_of(desk.scheduler) == before
    assert not plan.num_scheduled_tokens and desk.scheduler.has_unfinished_requests()
    assert {decision.request_id: (decision.verdict, decision.numbers) for decision in reasons} == {
        name: (Verdict.MAX_LORAS, {"active": 1, "limit": 1}) for name in "abc"
    }
    assert desk.step().num_scheduled_tokens == {}
    assert desk.waiting == ["a", "b", "c"]  # passed over, in order


def test_a_head_that_has_outgrown_the_pool() -> None:
    """The engine keeps max_model_len within the pool, so that this cannot happen there; the scheduler alone tells it."""
    desk = Desk(usable=2, max_model_len=64)
    desk.add("a", 4, max_tokens=20)
    for _ in range(8):
        desk.step()
    plan, reasons = desk.scheduler.preview()
    assert not plan.num_scheduled_tokens
    assert [(d.verdict, d.numbers) for d in reasons] == [(Verdict.RESERVE, {"needs": 3, "free": 2, "watermark": 0})]
