"""A person's scheduler that raises half way through a plan leaves the engine as it was before that plan."""

from __future__ import annotations

import pytest

from nbengine.errors import StepError
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler
from tests.observe.engines import make_llm


class Broken(Scheduler):
    def choose_victim(self) -> Request:
        return self.running[len(self.running)]


def test_half_a_plan_is_taken_back_and_the_stock_scheduler_can_go_on(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    llm = make_llm(num_blocks=11, block_size=4, scheduler_cls=Broken, max_num_batched_tokens=32, max_model_len=40)
    dbg = llm.debug()
    dbg.add_group([8, 8, 8], max_tokens=12)
    with pytest.raises(StepError, match="schedule of step 5 failed: IndexError"):
        dbg.run()
    assert [r.num_computed_tokens for r in dbg.core.scheduler.running] == [12, 12, 12]
    assert [dbg.view.requests[r].num_computed_tokens for r in ("r1", "r2", "r3")] == [12, 12, 12]
    assert list(dbg.core.scheduler.kv.pool.free) == list(dbg.view.free_queue)
    dbg.core.check_invariants()
    other = dbg.fork(scheduler_cls=None)
    other.run(max_steps=60)
    assert {r.finish_reason for r in other.view.requests.values()} == {"length"}
