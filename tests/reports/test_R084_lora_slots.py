"""R084: when all adapter slots are taken, requests that need another adapter are passed over, and those behind them
that need none, or one that is there already, are admitted."""

from __future__ import annotations

from nbengine.scheduler.decision import Verdict
from tests.scheduler.desk import Desk

ADAPTERS = [0, 0, 0, 1, 3, 2, 4, 5, 5, 5, 5, 0, 0, 1, 2, 3]  # of R1 … R16


def test_the_queue_of_that_report() -> None:
    desk = Desk(usable=200, max_num_seqs=16, max_loras=4, max_num_batched_tokens=256)
    for number, adapter in enumerate(ADAPTERS, 1):
        desk.add(f"R{number}", 5, lora_id=adapter, lora_name=f"L{adapter}" if adapter else None)
    decisions = desk.explained_step()
    assert desk.running == [f"R{number}" for number in (*range(1, 8), *range(12, 17))]
    for number in range(8, 12):
        decision = decisions[f"R{number}"]
        assert (decision.verdict, decision.numbers) == (Verdict.MAX_LORAS, {"active": 4, "limit": 4})
    assert desk.waiting == ["R8", "R9", "R10", "R11"]
    desk.run()
    assert len(desk.reasons) == 16
