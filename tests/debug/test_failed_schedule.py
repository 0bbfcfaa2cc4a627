"""A person's scheduler that raises, or returns nonsense, in any phase: the engine stands before that phase as it was, says
whose rule it was and in which step, and can go on, with the same scheduler or with the stock one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from nbengine.debug.debugger import Debugger
from nbengine.debug.trace import Trace
from nbengine.engine.core import EngineCore
from nbengine.errors import RuleError, StepError
from nbengine.observe.observer import Phase
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreOutputs
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler
from tests.observe.engines import make_llm
from tests.scheduler.state import state_of


class Broken(Scheduler):
    def choose_victim(self) -> Request:
        return self.running[len(self.running)]


class WaitingVictim(Scheduler):
    def choose_victim(self) -> Request:
        return self.waiting.peek()


class NoVictim(Scheduler):
    def choose_victim(self) -> Request:
        return None  # type: ignore[return-value]


class BadKey(Scheduler):
    def waiting_key(self, request: Request) -> Any:
        raise RuntimeError("key bug")


class Flaky(Scheduler):
    """Fails once, after the fact, in the phase that it is told."""

    fails_in = ""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        plan = super().schedule(throttle_prefills)
        self._maybe_fail("schedule")
        return plan

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> EngineCoreOutputs:
        outputs = super().update_from_output(plan, output)
        self._maybe_fail("update")
        return outputs

    def _maybe_fail(self, phase: str) -> None:
        if self.fails_in == phase:
            self.fails_in = ""
            raise RuntimeError("too late")


class PlansNothing(Scheduler):
    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        super().schedule(throttle_prefills)  # and no return
        return None  # type: ignore[return-value]


class GivesNothing(Scheduler):
    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> EngineCoreOutputs:
        super().update_from_output(plan, output)
        return None  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def crash_files_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def attach(cls: type[Scheduler] | None, **options: Any) -> Debugger:
    small = {"num_blocks": 11, "block_size": 4, "max_num_batched_tokens": 32, "max_model_len": 40}
    return make_llm(scheduler_cls=cls, **{**small, **options}).debug()


def told_alike(dbg: Debugger) -> bool:
    """Whether the view is the engine, block for block, and the books add up."""
    core: EngineCore = dbg.core
    core.check_invariants()
    assert list(core.scheduler.kv.pool.free) == list(dbg.view.free_queue)
    assert [r.request_id for r in core.scheduler.running] == list(dbg.view.running)
    assert [r.request_id for r in core.scheduler.waiting_requests()] == list(dbg.view.waiting)
    return True


def test_half_a_plan_is_taken_back_and_the_stock_scheduler_can_go_on() -> None:
    dbg = attach(Broken)
    dbg.add_group([8, 8, 8], max_tokens=12)
    with pytest.raises(StepError, match="schedule of step 5 failed: IndexError"):
        dbg.run()
    assert [r.num_computed_tokens for r in dbg.core.scheduler.running] == [12, 12, 12]
    assert [dbg.view.requests[r].num_computed_tokens for r in ("r1", "r2", "r3")] == [12, 12, 12]
    assert told_alike(dbg)
    other = dbg.fork(scheduler_cls=None)
    other.run(max_steps=60)
    assert {r.finish_reason for r in other.view.requests.values()} == {"length"}


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (WaitingVictim, r"WaitingVictim.choose_victim returned Request\('r4', waiting, .*one of self.running"),
        (NoVictim, r"NoVictim.choose_victim returned None; it must return one of self.running"),
    ],
)
def test_a_wrong_victim_is_a_failed_step(cls: type[Scheduler], says: str, tmp_path: Path) -> None:
    dbg = attach(cls, max_num_seqs=3)
    dbg.add_group([8, 8, 8, 8], max_tokens=12)
    with pytest.raises(StepError, match=f"(?s)schedule of step 5 failed: RuleError: {says}") as caught:
        dbg.run()
    assert "To go on with the stock scheduler: dbg.fork(scheduler_cls=None)." in str(caught.value)
    failed = dbg.records[-1].failed
    assert failed is not None and failed.step == 5 and "one of self.running" in failed.error
    (file,) = tmp_path.glob("nbengine-crash-*-step5.nbtrace")
    assert Trace.open(file).steps[-1].failed is not None and str(file) in str(caught.value)
    assert told_alike(dbg)
    other = dbg.fork(scheduler_cls=None)
    other.run(max_steps=60)
    assert len(other.view.finished) == 4


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_request_without_a_place_is_not_half_in(policy: str) -> None:
    dbg = attach(BadKey, scheduling_policy=policy)
    for _ in range(2):
        with pytest.raises(RuleError, match=r"BadKey cannot queue 'a' in step 0: BadKey.waiting_key raised RuntimeError"):
            dbg.add("hello", "a")
    assert not dbg.engine.is_alive("a") and not dbg.core.scheduler.requests and told_alike(dbg)
    stock = dbg.fork(scheduler_cls=None)
    stock.add("hello", "a", max_tokens=2)
    with pytest.raises(RuleError, match=r"BadKey.waiting_key raised"):
        stock.fork(scheduler_cls=BadKey)
    stock.run()
    assert stock.view.finished == ["a"]


@pytest.mark.parametrize("phase", ["schedule", "update"])
def test_a_phase_that_failed_late_can_be_called_again(phase: str) -> None:
    dbg, good = attach(Flaky), attach(None)
    for each in (dbg, good):
        each.add_group([8, 8, 8, 8], max_tokens=12)
    while dbg.core.has_work():
        at = dbg.core.step_count
        if phase == "update":
            dbg.schedule()
            dbg.execute()
        before = state_of(dbg.core.scheduler)
        dbg.core.scheduler.fails_in = phase
        with pytest.raises(StepError, match=f"{phase} of step {at} failed: RuntimeError: too late") as caught:
            dbg.step()
        assert (phase == "update") == ("dbg.back(), then dbg.fork" in str(caught.value))
        assert dbg.core.next_phase == phase and state_of(dbg.core.scheduler) == before and told_alike(dbg)
        dbg.step()
        assert told_alike(dbg)
    good.run()
    assert dbg.core.scheduler.num_preemptions > 0
    for name in ("r1", "r2", "r3", "r4"):
        assert dbg.output(name).outputs[0].token_ids == good.output(name).outputs[0].token_ids


def test_an_update_that_always_fails_goes_on_with_the_stock_scheduler_one_step_back() -> None:
    dbg = attach(GivesNothing)
    dbg.add_group([8], max_tokens=3)
    for _ in range(2):
        with pytest.raises(
            StepError, match=r"update of step 0 failed: RuleError: GivesNothing.update_from_output returned None"
        ):
            dbg.step()
    assert dbg.core.scheduler.requests["r1"].num_output_tokens == 0 and told_alike(dbg)
    dbg.back()
    stock = dbg.fork(scheduler_cls=None)
    stock.run()
    assert len(stock.output("r1").outputs[0].token_ids) == 3


def test_no_plan_at_all() -> None:
    dbg = attach(PlansNothing)
    dbg.add_group([8], max_tokens=3)
    for _ in range(2):
        with pytest.raises(
            StepError,
            match=r"schedule of step 0 failed: RuleError: PlansNothing.schedule returned None; .* a SchedulerOutput",
        ):
            dbg.step()
        assert dbg.core.next_phase is Phase.SCHEDULE and dbg.core.plan is None and told_alike(dbg)
        assert [r.request_id for r in dbg.core.scheduler.waiting] == ["r1"]


def test_an_executor_that_returns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    dbg = attach(None)
    dbg.add_group([8], max_tokens=3)
    with monkeypatch.context() as patched:
        patched.setattr(dbg.core.executor, "execute_model", lambda plan: None)
        with pytest.raises(
            StepError, match=r"execute of step 0 failed: RuleError: <lambda> returned None; .* ModelRunnerOutput"
        ):
            dbg.step()
    assert dbg.core.next_phase is Phase.EXECUTE
    dbg.run()
    assert len(dbg.view.finished) == 1


def test_the_stock_scheduler_says_that_it_may_be_half_done_and_how_to_go_back() -> None:
    dbg = attach(None)
    dbg.add_group([8, 8], max_tokens=6)
    dbg.step()
    dbg.add_group([8], max_tokens=6)
    dbg.core.config.scheduler.max_num_seqs = 2
    dbg.step()
    dbg.core.config.scheduler.max_num_seqs = 3
    dbg.core.config.scheduler.max_num_batched_tokens = 4.5
    with pytest.raises(StepError, match=r"(?s)schedule of step 2 failed: TypeError.*half done: go back with dbg.back\(\)"):
        dbg.step()
    assert [r.request_id for r in dbg.core.scheduler.waiting] == ["r3"]
    dbg.back()
    assert told_alike(dbg)
    dbg.run()
    assert len(dbg.view.finished) == 3
