"""Recorder: watches an EngineCore and makes the records."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from nbengine.kv_cache.ops import BlockOp
from nbengine.observe import reading
from nbengine.observe.log import RecordLog, StepLog, decoded
from nbengine.observe.observer import Phase, Watched
from nbengine.observe.records import (
    Aborted,
    Added,
    AnyRecord,
    Changed,
    Executed,
    Failed,
    Finished,
    Keyframe,
    Scheduled,
    Texts,
    Updated,
    decoder,
    encoder,
)
from nbengine.observe.view import EngineView
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreOutputs, EngineCoreRequest
from nbengine.sampling_params import SamplingParams
from nbengine.scheduler.decision import Decision
from nbengine.scheduler.invariants import violations

logger = logging.getLogger(__name__)

KEYFRAME_STEPS = 64
Listener = Callable[[AnyRecord, bytes], None]


class Recorder:
    """An observer.Observer that turns what the core does into records, keeps them, and tells subscribers.

    limit_records, limit_bytes: what is kept; the oldest go first. tensors: keep each step's batch tensors.
    check_every: run the scheduler's own book check at each n-th step, 0 = never; by default so often that it stays cheap.
    texts_of: token ids -> their texts. prompt_of: request id -> its prompt. Both are the front's to give.
    after: called with each record once the view has taken it in, in the engine's thread. on_failure: with what a phase
    raised, once its record is made.
    """

    def __init__(
        self, core: Watched, *, limit_records: int = 400_000, limit_bytes: int = 128 << 20, tensors: bool = True
    ) -> None:
        self.core = core
        self.tensors = tensors
        self.texts_of: Callable[[list[int]], list[str]] | None = None
        self.prompt_of: Callable[[str], str | None] | None = None
        self.after: Callable[[AnyRecord], None] | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        self.log = RecordLog(limit_records, limit_bytes)
        self.check_every = 1 + core.config.cache.num_blocks // 256
        self.started = 0.0
        self.view = EngineView(reading.header_of(core, ""))
        self._subscribers: list[Listener] = []
        self._running: list[str] = []  # as last told
        self._waiting: list[str] = []

    # ---------------------------------------------------------------------------------------------------- on, off, listen

    def attach(self) -> None:
        """Start watching: takes the core's observer slot and switches on what the parts below note."""
        if self.core.observer not in (None, self):
            raise ValueError("This engine is watched already: go on with that Debugger, or detach() it first.")
        self.started = self.core.executor.clock.now()
        header = reading.header_of(self.core, datetime.now(UTC).isoformat(timespec="seconds"))
        self._switch(True)
        self.core.observer = self
        self.view.header = header
        self.log.header = header
        self._tell(header, encoder.encode(header))
        if reading.is_untouched(self.core):
            self.view.clear()
            self.log.begin(0, None)
        else:
            self._restart(reading.keyframe_of(self.core, self.now(), self.view))

    def detach(self) -> None:
        """Stop watching; what was recorded stays. The engine is again as fast as it was."""
        if self.core.observer is self:
            self.core.observer = None
            self._switch(False)

    def _switch(self, on: bool) -> None:
        self.core.scheduler.decisions = [] if on else None
        reading.pool_of(self.core.scheduler).ops = [] if on else None
        self.core.executor.observe(on and self.tensors)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each record, as it is and encoded, in the engine's thread. Returns what ends that.

        A listener that raises is dropped, and the engine goes on.
        """
        self._subscribers.append(listener)

        def end() -> None:
            if listener in self._subscribers:
                self._subscribers.remove(listener)

        return end

    # ----------------------------------------------------------------------------------------------------------- reading

    def now(self) -> float:
        """Seconds of the engine's clock since the recorder was attached."""
        return self.core.executor.clock.now() - self.started

    @property
    def steps(self) -> StepLog:
        """What is kept, by step."""
        return StepLog(decoded(self.log.stream()))

    def records(self) -> list[AnyRecord]:
        """All that is kept, header first."""
        return list(decoded(self.log.stream()))

    def view_at(self, step: int, phase: str = "schedule") -> EngineView:
        """The view as it was when the engine stood before `phase` of `step`. Raises LookupError for a moment not kept."""
        records = decoded(self.log.upto(step))
        next(records, None)  # the header
        view = EngineView(self.view.header)
        view.painter = self.view.painter
        for record in records:
            reached = (view.step, view.phase) == (step, phase)
            if reached and (phase != "schedule" or isinstance(record, Scheduled)):
                break  # before schedule: with the inputs that came before it
            view.apply(record)
        if (view.step, view.phase) != (step, phase):
            raise LookupError(
                f"Step {step} before {phase} is not recorded; recorded: step {self.log.first_step} to {self.view.step}."
            )
        return view

    # ------------------------------------------------------------------------------------- what the core tells (Observer)

    def on_added(self, request: EngineCoreRequest) -> None:
        self.tell_texts(request.prompt_token_ids)
        waiting = reading.waiting_ids(self.core.scheduler)
        at_end = waiting == [*self._waiting, request.request_id]
        self._waiting = waiting
        record = Added(
            step=self.core.step_count,
            at=self.now(),
            request_id=request.request_id,
            prompt_token_ids=list(request.prompt_token_ids),
            max_tokens=request.sampling_params.max_tokens or 0,
            priority=request.priority,
            prompt=self.prompt_of(request.request_id) if self.prompt_of else None,
            params=changed_params(request.sampling_params),
            waiting=[] if at_end else waiting,
        )
        self._emit("added", record)

    def on_aborted(self, request_ids: list[str], reason: str) -> None:
        ops = self._take_ops()
        gone = set(request_ids)
        running = [name for name in self._running if name not in gone]
        waiting = [name for name in self._waiting if name not in gone]
        self._running, self._waiting = running, waiting
        for place, request_id in enumerate(request_ids):
            last = place == len(request_ids) - 1
            record = Aborted(
                step=self.core.step_count,
                at=self.now(),
                request_id=request_id,
                reason=str(reason),
                block_ops=ops if place == 0 else [],
                running=self._told_running() if last else None,
                waiting=self._told_waiting() if last else None,
            )
            self._emit("aborted", record)

    def on_changed(self, what: str, values: dict[str, Any], request_id: str | None = None) -> None:
        if what == "reset":  # a new scheduler stands there
            self._switch(True)
            self._emit("changed", Changed(step=self.core.step_count, at=self.now(), what=what, values=values))
            frame = reading.keyframe_of(self.core, self.now(), self.view)
            frame.requests += reading.ended(self.view, values.get("dropped", []))
            frame.finished = [state.request_id for state in frame.requests if state.status == "finished"]
            self._restart(frame)
            return
        ops = self._take_ops()
        before = self._running
        running, waiting = self._told_running(), self._told_waiting()
        if what == "reset_prefix_cache" and running is not None:
            values = values | {"preempted": [name for name in reversed(before) if name not in running]}
        record = Changed(
            step=self.core.step_count,
            at=self.now(),
            what=what,
            values=values,
            request_id=request_id,
            block_ops=ops,
            running=running,
            waiting=waiting,
        )
        self._emit("changed", record)

    def on_scheduled(self, plan: SchedulerOutput, seconds: float) -> None:
        cached = plan.scheduled_cached_reqs
        computed = dict(zip(cached.request_ids, cached.num_computed_tokens))
        for new in plan.scheduled_new_reqs:
            computed[new.request_id] = new.num_computed_tokens
        for resumed in plan.scheduled_resumed_reqs:
            computed[resumed.request_id] = resumed.num_computed_tokens
        record = Scheduled(
            step=self.core.step_count,
            at=self.now(),
            schedule_s=seconds,
            request_ids=list(plan.num_scheduled_tokens),
            tokens=list(plan.num_scheduled_tokens.values()),
            computed=[computed[request_id] for request_id in plan.num_scheduled_tokens],
            preempted=list(plan.preempted_req_ids),
            finished_req_ids=list(plan.finished_req_ids),
            decisions=self._take_decisions(),
            block_ops=self._take_ops(),
            running=self._told_running(),
            waiting=self._told_waiting(),
            num_common_prefix_blocks=plan.num_common_prefix_blocks,
            free_blocks=reading.pool_of(self.core.scheduler).num_free,
        )
        self._emit("scheduled", record)

    def on_executed(self, result: ModelRunnerOutput, seconds: float) -> None:
        batch = self.core.executor.batch_tensors() if self.tensors else None
        for tokens in result.sampled_token_ids:
            self.tell_texts(tokens)
        if batch is not None and batch.top_token_ids:
            self.tell_texts(reading.int32s(batch.top_token_ids))
        record = Executed(
            step=self.core.step_count,
            at=self.now(),
            execute_s=seconds,
            prepare_s=result.prepare_s,
            forward_s=result.forward_s,
            sample_s=result.sample_s,
            sampled=[list(tokens) for tokens in result.sampled_token_ids],
            batch=batch,
            thread=threading.current_thread().name,
        )
        self._emit("executed", record)

    def on_updated(self, outputs: EngineCoreOutputs, seconds: float) -> None:
        step = outputs.step
        made = outputs.outputs
        check = self.check_every and step % self.check_every == 0
        stats = outputs.stats.prefix_cache if outputs.stats else None
        record = Updated(
            step=step,
            at=self.now(),
            update_s=seconds,
            request_ids=[out.request_id for out in made],
            tokens=[list(out.new_token_ids) for out in made],
            finished=[Finished(o.request_id, str(o.finish_reason), o.stop_reason) for o in made if o.finish_reason],
            block_ops=self._take_ops(),
            running=self._told_running(),
            prefix=reading.prefix_numbers(stats) if stats else [],
            violations=[str(found) for found in violations(self.core.scheduler)] if check else None,
        )
        self._emit("updated", record)
        if (step + 1) % KEYFRAME_STEPS == 0 or self.log.is_crowded():
            self._keyframe()

    def on_failed(self, phase: Phase, error: BaseException) -> None:
        if phase is Phase.SCHEDULE:  # half a plan, which was taken back
            self._take_ops()
            self._take_decisions()
        lines = "".join(traceback.format_exception(error))
        text = f"{type(error).__name__}: {error}"
        self._emit("failed", Failed(step=self.core.step_count, at=self.now(), phase=str(phase), error=text, traceback=lines))
        if self.on_failure is not None:
            self.on_failure(error)

    # -------------------------------------------------------------------------------------------------------- going back

    def rewound(self, step: int) -> None:
        """The engine was put back to the moment before it scheduled `step`: forget what came after, and say so.

        The log says it where the run goes on, and needs no keyframe there. Listeners, who know what came after, get one.
        """
        self._take_ops()
        self._take_decisions()
        told = Changed(step=step, at=self.now(), what="rewind", values={"from_step": self.view.step, "to_step": step})
        if self.log.truncate(step):
            view = self.view_at(step)
        else:
            frame = reading.keyframe_of(self.core, self.now(), self.view)
            view = EngineView.from_keyframe(self.view.header, frame)
            self.log.restart(step, encoder.encode(frame))
        view.painter, view.texts = self.view.painter, self.view.texts
        view.options = reading.changed_options(self.core, view.header)
        view.apply(told)
        self.view = view
        data = encoder.encode(told)
        self.log.append("changed", step, data)
        self._tell(told, data)
        self._running, self._waiting = list(view.running), list(view.waiting)
        frame = view.keyframe()
        self._tell(frame, encoder.encode(frame))
        if self.after is not None:
            self.after(told)

    # ------------------------------------------------------------------------------------------------------------ within

    def _emit(self, kind: str, record: AnyRecord) -> None:
        self.view.apply(record)
        data = encoder.encode(record)
        self.log.append(kind, getattr(record, "step", 0), data)
        self._tell(record, data)
        if self.after is not None:
            self.after(record)

    def _tell(self, record: AnyRecord, data: bytes) -> None:
        for listener in list(self._subscribers):
            try:
                listener(record, data)
            except Exception:
                self._subscribers.remove(listener)
                logger.exception("A listener to the records failed and was dropped; the engine goes on")

    def tell_texts(self, token_ids: list[int]) -> None:
        """Make a Texts record for those of these tokens that no record has told the text of."""
        if self.texts_of is None:
            return
        known = self.view.texts
        new = [token for token in dict.fromkeys(token_ids) if token not in known]
        if new:
            record = Texts(token_ids=new, texts=self.texts_of(new))
            self.view.apply(record)
            self.log.texts.update(zip(record.token_ids, record.texts))
            self._tell(record, encoder.encode(record))

    def _keyframe(self) -> None:
        frame = self.view.keyframe()
        data = encoder.encode(frame)
        self.log.begin(frame.step, data)
        self.log.trim()
        self._tell(frame, data)

    def _restart(self, frame: Keyframe) -> None:
        """Go on from a state that no record led to."""
        data = encoder.encode(frame)
        self.view.apply(decoder.decode(data))
        self._running, self._waiting = list(frame.running), list(frame.waiting)
        self.log.begin(frame.step, data)
        self._tell(frame, data)

    def _take_decisions(self) -> list[Decision]:
        decisions: list[Decision] = self.core.scheduler.decisions or []
        self.core.scheduler.decisions = []
        return decisions

    def _take_ops(self) -> list[BlockOp]:
        pool = reading.pool_of(self.core.scheduler)
        ops: list[BlockOp] = pool.ops or []
        pool.ops = []
        return ops

    def _told_running(self) -> list[str] | None:
        """The running queue if it is not as last told."""
        running = [request.request_id for request in self.core.scheduler.running]
        if running == self._running:
            return None
        self._running = running
        return running

    def _told_waiting(self) -> list[str] | None:
        waiting = reading.waiting_ids(self.core.scheduler)
        if waiting == self._waiting:
            return None
        self._waiting = waiting
        return waiting

    def __iter__(self) -> Iterator[AnyRecord]:
        return decoded(self.log.stream())


_DEFAULTS = msgspec.to_builtins(SamplingParams())


def changed_params(params: SamplingParams) -> dict[str, Any]:
    """The sampling parameters that are not the defaults."""
    values = msgspec.to_builtins(params)
    return {name: value for name, value in values.items() if value != _DEFAULTS[name]}
