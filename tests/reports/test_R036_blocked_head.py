"""R036: a head that lacks blocks holds back everyone behind it (strict first come, first served, as in vLLM), and each of
them is told so. There is no option to overtake, hence nothing to bound."""

from __future__ import annotations

from nbengine.scheduler.decision import Verdict
from tests.scheduler.desk import Desk


def test_small_ones_wait_behind_a_big_one_and_know_why() -> None:
    desk = Desk(usable=10, block_size=4)
    desk.add("runner", 19, max_tokens=2)
    desk.step()
    desk.add("big", 40)
    for number in range(4):
        desk.add(f"s{number}", 3)
    decisions = desk.explained_step()
    assert (decisions["big"].verdict, decisions["big"].numbers) == (
        Verdict.RESERVE,
        {"needs": 10, "free": 5, "watermark": 0},
    )
    for number in range(4):
        decision = decisions[f"s{number}"]
        assert (decision.verdict, decision.cause) == (Verdict.BEHIND, "big")
    assert desk.waiting == ["big", "s0", "s1", "s2", "s3"]
    assert "runner" in desk.reasons
    assert next(iter(desk.step().num_scheduled_tokens)) == "big"
