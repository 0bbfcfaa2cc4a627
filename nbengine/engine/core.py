"""EngineCore: a scheduler and an executor, moved in three phases.

    schedule()  the scheduler plans the step: which requests get how many tokens, and which KV blocks
    execute()   the executor runs the model over that batch and samples
    update()    the scheduler takes the tokens: appends, stops, frees

A step is these three, in this order, and one can stop before any of them, look, change something and go on. The core
knows tokens, never text; the front (LLMEngine) knows text and never reaches in here.
"""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from nbengine.config import EngineConfig
from nbengine.engine import interrupts
from nbengine.engine.kv_setup import initialize_kv_caches
from nbengine.errors import PhaseError, RuleError, StalledError, StepError
from nbengine.executor.base import Executor
from nbengine.observe.observer import Gatekeeper, Observer, Phase
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreOutputs, EngineCoreRequest, FinishReason
from nbengine.scheduler import make_scheduler
from nbengine.scheduler.decision import rule_name
from nbengine.scheduler.invariants import check_invariants
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EngineCore:
    """Owns the scheduler and the executor. One thread moves it at a time; a second one gets a PhaseError, not a wait."""

    def __init__(self, config: EngineConfig, executor: Executor) -> None:
        self.config = config
        self.executor = executor
        initialize_kv_caches(config, executor)
        self.scheduler = make_scheduler(config)
        self.observer: Observer | None = None
        self.gate: Gatekeeper | None = None
        self.next_phase = Phase.SCHEDULE
        self.step_count = 0  # steps completed = number of the step under way
        self.plan: SchedulerOutput | None = None  # of the step under way
        self.result: ModelRunnerOutput | None = None
        self._seems_stalled = False  # the step under way moves nothing although requests wait
        self.in_step = False  # inside step(): someone's blocking call moves the engine
        self._moving = threading.Lock()
        self._free = weakref.finalize(self, executor.shutdown)  # so that dropping the engine frees its memory at once
        self._free.atexit = False

    # ------------------------------------------------------------------------------------------------------- requests

    def add_request(self, request: EngineCoreRequest) -> None:
        """Put a request at the end of the waiting queue.

        Raises DuplicateRequestError for a live id, InvalidRequestError for one that can never fit the KV cache, RuleError if
        a rule of one's own fails. Then nothing has changed.
        """
        self.scheduler.add_request(Request(request, self.config.scheduler.max_model_len))
        self._tell("on_added", request)

    def abort_requests(self, request_ids: list[str], reason: FinishReason = FinishReason.ABORT) -> list[str]:
        """End requests at once and free their blocks; ids that are not alive are ignored. Returns those that were."""
        alive = self.scheduler.finish_requests(request_ids, reason)
        if alive:
            self._tell("on_aborted", alive, reason)
        return alive

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests() or self.next_phase is not Phase.SCHEDULE

    def has_work(self) -> bool:
        """Whether a step would do anything: requests to run, or finished ids that the executor has not been told."""
        return self.scheduler.has_requests_or_finished_to_announce() or self.next_phase is not Phase.SCHEDULE

    # --------------------------------------------------------------------------------------------------- the three phases

    def schedule(self) -> SchedulerOutput:
        """Plan the next step. Raises PhaseError out of order, StepError if the scheduler fails."""
        with interrupts.deferred(), self._phase(Phase.SCHEDULE):
            now = self.executor.clock.now
            start = now()
            with self._all_or_nothing():
                plan = _checked(self.scheduler.schedule(), SchedulerOutput, self.scheduler.schedule)
            self.plan = plan
            seconds = now() - start
            self.next_phase = Phase.EXECUTE
            moves = plan.num_scheduled_tokens or plan.preempted_req_ids
            self._seems_stalled = not moves and self.scheduler.has_unfinished_requests()
            self._tell("on_scheduled", plan, seconds)
        return plan

    def execute(self) -> ModelRunnerOutput:
        """Run the model over the plan. After an interrupt or an error the step stands before this phase again."""
        with interrupts.deferred(), self._phase(Phase.EXECUTE):
            assert self.plan is not None
            now = self.executor.clock.now
            start = now()
            with interrupts.allowed():
                result = self.executor.execute_model(self.plan)
            self.result = _checked(result, ModelRunnerOutput, self.executor.execute_model)
            seconds = now() - start
            self.next_phase = Phase.UPDATE
            self._tell("on_executed", result, seconds)
        return result

    def update(self) -> EngineCoreOutputs:
        """Take the sampled tokens into the scheduler. Entries whose request was aborted meanwhile are skipped.

        An interrupt is raised once all is done, but then the outputs are lost to the caller: who wants them calls this
        inside `interrupts.deferred()`, as LLMEngine does.
        """
        with interrupts.deferred(), self._phase(Phase.UPDATE):
            assert self.plan is not None and self.result is not None
            now = self.executor.clock.now
            start = now()
            update = self.scheduler.update_from_output
            with self._all_or_nothing():
                outputs = _checked(update(self.plan, self.result), EngineCoreOutputs, update)
            outputs.timestamp = now()
            seconds = outputs.timestamp - start
            self.next_phase = Phase.SCHEDULE
            self.step_count += 1
            self._tell("on_updated", outputs, seconds)
        return outputs

    def step(self) -> EngineCoreOutputs:
        """Run the phases that are left of this step: all three, unless someone has moved by hand.

        Raises StalledError after a step that moved nothing although requests wait: no later one would either.
        """
        self.in_step = True
        try:
            while True:
                if self.gate is not None:
                    with interrupts.allowed():
                        self.gate.at(self.next_phase)
                phase = self.next_phase
                outcome = getattr(self, phase)()  # a phase is named as the method that makes it
                if phase is Phase.UPDATE:
                    if self._seems_stalled and (why := self._why_stalled()):
                        raise StalledError(why)
                    return cast(EngineCoreOutputs, outcome)
        finally:
            self.in_step = False
            if self.gate is not None:
                self.gate.left()

    # ---------------------------------------------------------------------------------------------------------- controls

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix index. False, and nothing changes, while any block is held, unless running requests may be
        preempted for it."""
        done = self.scheduler.reset_prefix_cache(reset_running_requests)
        self._tell("on_changed", "reset_prefix_cache", {"done": done})
        return done

    def reset(self) -> list[str]:
        """Drop every request and the step under way, as after a crash: a new scheduler over the same weights and KV
        cache. Returns the ids that were alive."""
        alive = list(self.scheduler.requests)
        self.scheduler = make_scheduler(self.config)
        self.scheduler.step = self.step_count  # its outputs go on counting where the old one's stopped
        self.executor.forget_requests()
        self.plan = self.result = None
        self.next_phase = Phase.SCHEDULE
        self._tell("on_changed", "reset", {"dropped": alive})
        return alive

    def check_invariants(self) -> None:
        """Raises InvariantError if the books do not add up."""
        check_invariants(self.scheduler)

    def shutdown(self) -> None:
        """Free weights and KV cache. Calling it twice is fine."""
        self._free()

    # ------------------------------------------------------------------------------------------------------------- within

    @contextmanager
    def _phase(self, phase: Phase) -> Iterator[None]:
        """Guard one phase: in order, one thread, and a failure that says where the scheduler stood."""
        if not self._moving.acquire(blocking=False):
            raise PhaseError(f"{phase} was called while another thread is stepping this engine: pause it first.")
        try:
            if self.next_phase is not phase:
                raise PhaseError(f"{phase} was called, but the next phase of step {self.step_count} is {self.next_phase}.")
            try:
                yield
            except Exception as error:
                self._tell("on_failed", phase, error)
                raise StepError(
                    f"{phase} of step {self.step_count} failed: {type(error).__name__}: {error}\n"
                    f"{self.scheduler.describe()}\n"
                    f"{self._way_on(phase)}"
                ) from error
        finally:
            self._moving.release()

    def _way_on(self, phase: Phase) -> str:
        """What can be done after this phase has failed."""
        is_stock = type(self.scheduler) is Scheduler
        if is_stock and phase is not Phase.EXECUTE:
            return f"{phase} may be half done: go back with dbg.back(), if a debugger watches, or reset()."
        stands = "The engine stands before this phase: call it again, abort requests, or reset()."
        if is_stock:
            return stands
        back = "" if phase is Phase.SCHEDULE else "dbg.back(), then "
        return f"{stands}\nTo go on with the stock scheduler: {back}dbg.fork(scheduler_cls=None)."

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If a person's own rules raise half way through, the scheduler stands as it did before, and so does what it has
        noted for the observer. Then the phase can be called again.

        The stock scheduler is not guarded: a snapshot costs five plans.
        """
        scheduler = self.scheduler
        if type(scheduler) is Scheduler:
            yield
            return
        before = scheduler.snapshot()
        noted = [(notes, len(notes)) for notes in (scheduler.kv.pool.ops, scheduler.decisions) if notes is not None]
        try:
            yield
        except BaseException:
            scheduler.restore(before)
            for notes, length in noted:
                del notes[length:]
            raise

    def _why_stalled(self) -> str | None:
        """What holds back each waiting request, a line each; None if the next step would move one after all.

        The lines are the decisions of a plan that is never carried out.
        """
        scheduler = self.scheduler
        plan, decisions = scheduler.preview()
        reasons = {decision.request_id: str(decision) for decision in decisions}
        if plan.num_scheduled_tokens or not scheduler.has_unfinished_requests():
            return None
        waiting = [request.request_id for request in scheduler.waiting_requests()]
        lines = [reasons.get(request_id, f"{request_id}: the scheduler gave no reason") for request_id in waiting]
        head = f"Step {self.step_count - 1} moved nothing and no later one can, but {len(lines)} requests wait:"
        return "\n".join([head, *lines, scheduler.describe(), "Abort what blocks the others, give more room, or reset()."])

    def _tell(self, event: str, *facts: Any) -> None:
        """Tell the observer, if there is one; one that raises is detached, so that watching can never break the engine."""
        if self.observer is None:
            return
        try:
            getattr(self.observer, event)(*facts)
        except Exception as error:
            self.observer = None
            logger.exception("The observer failed and was detached")
            warnings.warn(f"The observer failed and was detached: {type(error).__name__}: {error}", stacklevel=3)


def _checked(result: T, wanted: type[T], made_by: Callable[..., object]) -> T:
    """The result, if it is what it must be. Raises RuleError before anything goes on with one that is not."""
    if not isinstance(result, wanted):
        raise RuleError(f"{rule_name(made_by)} returned {result!r}; it must return a {wanted.__name__}.")
    return result
