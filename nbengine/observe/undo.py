"""The undo log: what it takes to put an engine back to the moment before it scheduled an earlier step.

For each step it keeps the scheduler's snapshot and a mark of the front's. Of the KV cache it keeps only what is about to be
lost: when a block that still held something is handed to a new owner, its old content is copied out before the model
overwrites it. What stands in a block past its request's computed length counts for nothing and is not kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nbengine.kv_cache.ops import BlockOp, Op
from nbengine.observe.observer import Phase, Watched
from nbengine.plan import CachedRequestData, NewRequestData, SchedulerOutput

MARK_BYTES = 200  # a request in a front's mark, roughly

_LOSES = (Op.EVICT, Op.UNCACHE, Op.FREE_FRONT, Op.FREE_BACK)  # after these a block's content may be overwritten


def describe_running(core: Watched) -> None:
    """Have the executor know the scheduler's running requests, as they are, and no others: by a plan that describes them
    and computes nothing. After this the scheduler may go on as if the executor had seen the whole run."""
    described = [
        NewRequestData(
            request_id=request.request_id,
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            sampling_params=request.sampling_params,
            block_ids=list(request.block_ids),
            num_computed_tokens=request.num_computed_tokens,
            eos_token_id=request.eos_token_id,
            lora_id=request.lora_id,
        )
        for request in core.scheduler.running
    ]
    core.executor.forget_requests()
    plan = SchedulerOutput(
        step=core.step_count,
        scheduled_new_reqs=described,
        scheduled_resumed_reqs=[],
        scheduled_cached_reqs=CachedRequestData([], [], []),
        num_scheduled_tokens={},
        total_num_scheduled_tokens=0,
        preempted_req_ids=[],
        finished_req_ids=[],
    )
    core.executor.execute_model(plan)


@dataclass(slots=True)
class Moment:
    """The engine right before it scheduled `step`; `saved`: what that step then overwrote in the KV cache."""

    step: int
    at: float
    snapshot: Any
    mark: Any
    num_bytes: int
    saved: list[tuple[list[int], object]] = field(default_factory=list)


class UndoLog:
    """Bounded: the oldest moments are dropped beyond `limit_steps` steps or `limit_bytes` bytes.

    mark, restore_mark: the front's half of a moment, whatever it is.
    """

    def __init__(
        self,
        core: Watched,
        *,
        mark: Callable[[], object] = lambda: None,
        restore_mark: Callable[[Any], None] = lambda mark: None,
        limit_steps: int = 512,
        limit_bytes: int = 512 << 20,
    ) -> None:
        self.core = core
        self.limit_steps = limit_steps
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self._mark = mark
        self._restore_mark = restore_mark
        self._moments: deque[Moment] = deque()
        self._emptied: dict[int, int] = {}  # block -> the step in which it last lost what it held

    def __repr__(self) -> str:
        return f"undo log: {self._span()}"

    # ---------------------------------------------------------------------------------------------------------- keeping

    def before_schedule(self) -> None:
        """Keep this moment. To be called in the engine's thread right before `schedule`; else it does nothing."""
        core = self.core
        if core.next_phase is not Phase.SCHEDULE:
            return
        if self._moments and self._moments[-1].step == core.step_count:
            self._drop(self._moments.pop())  # taken already, but inputs may have come since
        snapshot = core.scheduler.snapshot()
        size = getattr(snapshot, "nbytes", 0) + MARK_BYTES * len(core.scheduler.requests)
        self._moments.append(Moment(core.step_count, core.executor.clock.now(), snapshot, self._mark(), size))
        self.num_bytes += size
        while len(self._moments) > 1 and (len(self._moments) > self.limit_steps or self.num_bytes > self.limit_bytes):
            self._drop(self._moments.popleft())

    def changed(self, step: int, ops: list[BlockOp]) -> None:
        """Blocks changed hands outside `schedule`, in `update` of this step or between steps."""
        for op in ops:
            if op.op in _LOSES:
                self._emptied[op.block_id] = step

    def scheduled(self, step: int, ops: list[BlockOp]) -> None:
        """Copy out what the step just planned will overwrite. To be called between its schedule and its execute."""
        self.changed(step, ops)
        if not self._moments:
            return
        oldest, emptied = self._moments[0].step, self._emptied
        taken = dict.fromkeys(op.block_id for op in ops if op.op is Op.ALLOCATE)
        self._save([block for block in taken if emptied.get(block, -1) >= oldest])

    def _save(self, blocks: list[int]) -> None:
        content = self.core.executor.copy_blocks_out(blocks) if blocks else None
        if content is None:
            return
        moment = self._moments[-1]
        moment.saved.append((blocks, content))
        size = len(blocks) * self.core.executor.kv_bytes_per_block
        moment.num_bytes += size
        self.num_bytes += size

    def _drop(self, moment: Moment) -> None:
        self.num_bytes -= moment.num_bytes

    # ------------------------------------------------------------------------------------------------------- going back

    @property
    def steps(self) -> list[int]:
        """The steps that one can go back to, oldest first."""
        return [moment.step for moment in self._moments]

    def restore(self, step: int) -> None:
        """Put the engine back to right before it scheduled `step`. In the engine's thread, at any phase boundary.

        Raises LookupError, and changes nothing, if that moment is not kept.
        """
        if step not in self.steps:
            raise LookupError(f"Cannot go back to step {step}: {self._span()}.")
        core = self.core
        while self._moments[-1].step > step:
            later = self._moments.pop()
            self._put_back(later)
            self._drop(later)
        moment = self._moments[-1]
        self._put_back(moment)
        moment.num_bytes -= sum(len(blocks) for blocks, _content in moment.saved) * core.executor.kv_bytes_per_block
        moment.saved.clear()
        core.scheduler.restore(moment.snapshot)
        describe_running(core)
        core.plan = core.result = None
        core.step_count = step
        core.next_phase = Phase.SCHEDULE
        core.executor.clock.set_back(moment.at)
        self._restore_mark(moment.mark)
        self.num_bytes = sum(kept.num_bytes for kept in self._moments)

    def _put_back(self, moment: Moment) -> None:
        for blocks, content in reversed(moment.saved):
            self.core.executor.copy_blocks_in(blocks, content)

    def _span(self) -> str:
        if not self._moments:
            return "no step is kept yet"
        kept = self.steps
        return (
            f"steps {kept[0]} to {kept[-1]} are kept (at most {self.limit_steps} steps and {self.limit_bytes >> 20} MiB; "
            f"older ones are dropped)"
        )

    def clear(self) -> None:
        """Forget every moment: after a reset, none of them is of this engine any more."""
        self._moments.clear()
        self._emptied.clear()
        self.num_bytes = 0
