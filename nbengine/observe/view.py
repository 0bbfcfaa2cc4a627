"""EngineView: what the records add up to. A pure function of the stream: same records, same view, here and in the browser.

It never touches an engine. `widgets/src/fold.ts` is this file again in TypeScript; tests/fixtures holds both to the same
answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import msgspec

from nbengine.kv_cache.ops import BlockOp, Op
from nbengine.observe.events import Event, events_of
from nbengine.observe.records import (
    FINISHED_KEPT,
    Aborted,
    Added,
    AnyRecord,
    Changed,
    Executed,
    Failed,
    Header,
    Keyframe,
    RequestState,
    Scheduled,
    Texts,
    Updated,
)
from nbengine.observe.state import REQUEST_COLUMNS, Blocks, BlockView, RequestView, copy_state
from nbengine.observe.tables import counted, html_table, text_table
from nbengine.scheduler.decision import Decision, Verdict


class EngineView:
    """The engine at one moment: queues, requests, blocks, clock.

    A stream may have gaps: records that a newer nbengine changed are left out of a file. What is said of requests, blocks
    and places that no record has told of is passed over then, here as in the browser.

    running, waiting: request ids, next first. step: the step under way, or the next one. phase: the next phase to run.
    decisions, sampled, batch: of the step under way or last done. owners[b], hashes[b]: of KV block b.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.options: dict[str, Any] = {}  # changed since the header
        self.texts: dict[int, str] = {}
        self.painter: Callable[[EngineView], dict[str, Any]] | None = None  # draws the picture of a mimebundle
        self.clear()

    def clear(self) -> None:
        """The view of an engine that has done nothing."""
        blocks = self.header.num_blocks
        self.step = 0
        self.phase = "schedule"
        self.at = 0.0
        self.requests: dict[str, RequestView] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.finished: list[str] = []
        self.owners: list[list[str]] = [[] for _ in range(blocks)]
        self.hashes: list[str | None] = [None] * blocks
        self.counters: dict[str, float] = {}
        self.busy_s = 0.0  # how long all phases have taken
        self.scheduled: Scheduled | None = None
        self.executed: Executed | None = None
        self.updated: Updated | None = None
        self.failed: Failed | None = None
        self.last_record: AnyRecord | None = None
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self._last_given: dict[int, tuple[str, int]] = {}  # block -> the request it was last given to, place in its table
        self._recent: list[AnyRecord] = []  # inputs since the last step, and the phases of this one

    # ------------------------------------------------------------------------------------------------------ what it tells

    @property
    def limits(self) -> Header:
        """The header with the options that have been changed since."""
        changed = {name: value for name, value in self.options.items() if name in Header.__struct_fields__}
        return msgspec.structs.replace(self.header, **changed)

    @property
    def free_queue(self) -> list[int]:
        """Free block ids, the next to be taken first."""
        return list(self._free)

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return len(self.owners) - 1 - len(self._free)

    @property
    def blocks(self) -> Sequence[BlockView]:
        return Blocks(self)

    @property
    def decisions(self) -> list[Decision]:
        return self.scheduled.decisions if self.scheduled else []

    @property
    def batch(self) -> dict[str, int]:
        """Tokens given to each request in the step under way, or last done."""
        return dict(zip(self.scheduled.request_ids, self.scheduled.tokens)) if self.scheduled else {}

    @property
    def sampled(self) -> list[list[int]]:
        return self.executed.sampled if self.executed else []

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that requests hold, 0 … 1."""
        return self.used_blocks / max(1, len(self.owners) - 1)

    @property
    def events(self) -> list[Event]:
        """What happened in the step under way (or last done), and the inputs right before it."""
        return [event for record in self._recent for event in events_of(record)]

    def happened(self, name: str, request_id: str | None = None) -> bool:
        """Whether an event of this name is among `events`."""
        return any(event.name == name and request_id in (None, event.request_id) for event in self.events)

    def block_token_ids(self, block_id: int) -> list[int]:
        """The tokens in a block, of the request it was last given to. Empty once that request is forgotten."""
        given = self._last_given.get(block_id)
        request = self.requests.get(given[0]) if given else None
        if given is None or request is None:
            return []
        size = self.header.block_size
        computed = len(request.token_ids) if request.status != "running" else request.num_computed_tokens
        return request.token_ids[given[1] * size : min((given[1] + 1) * size, computed)]

    # ------------------------------------------------------------------------------------------------------------ folding

    @classmethod
    def fold(cls, records: Iterable[AnyRecord]) -> Self:
        """The view after all of `records`. The first must be a Header."""
        stream = iter(records)
        header = next(stream, None)
        if not isinstance(header, Header):
            raise ValueError(f"A record stream starts with a Header, got {type(header).__name__}.")
        view = cls(header)
        for record in stream:
            view.apply(record)
        return view

    def apply(self, record: AnyRecord) -> None:
        """Take one more record in."""
        match record:
            case Scheduled():
                self._apply_scheduled(record)
            case Executed():
                self._recent.append(record)
                self.busy_s += record.execute_s
                self.executed, self.phase, self.at = record, "update", record.at
            case Updated():
                self._apply_updated(record)
            case Added():
                self._apply_added(record)
            case Aborted():
                self._input(record)
                self._ops(record.block_ops)
                self._end(record.request_id, record.reason, None)
                self._queues(record.running, record.waiting)
            case Changed():
                self._apply_changed(record)
            case Failed():
                self._apply_failed(record)
            case Texts():
                self.texts.update(zip(record.token_ids, record.texts))
            case Keyframe():
                self._apply_keyframe(record)
            case Header():
                self.header, self.options = record, {}
                self.clear()
        self.last_record = record

    def _input(self, record: Added | Aborted | Changed) -> None:
        if self.phase == "schedule":
            self._put_last_step_away()
        self._recent.append(record)
        self.at = record.at

    def _put_last_step_away(self) -> None:
        if any(isinstance(recent, Updated) for recent in self._recent):
            self._recent = []

    def _apply_failed(self, record: Failed) -> None:
        if record.phase == "schedule":
            self._put_last_step_away()
            self._nothing_given()
        self._recent.append(record)
        self.failed, self.phase, self.at = record, record.phase, record.at

    def _nothing_given(self) -> None:
        for request_id in self.batch:
            if request_id in self.requests:
                self.requests[request_id].scheduled = 0

    def _apply_added(self, record: Added) -> None:
        self._input(record)
        if record.request_id in self.requests:  # the id of a finished request, used again
            del self.requests[record.request_id]
            self.finished = [other for other in self.finished if other != record.request_id]
        self.requests[record.request_id] = RequestView(
            request_id=record.request_id,
            status="waiting",
            token_ids=list(record.prompt_token_ids),
            num_prompt_tokens=len(record.prompt_token_ids),
            num_computed_tokens=0,
            max_tokens=record.max_tokens,
            block_ids=[],
            priority=record.priority,
            prompt=record.prompt,
            params=dict(record.params),
            added_at=self.busy_s,
        )
        if record.waiting:
            self.waiting = list(record.waiting)
        else:
            self.waiting.append(record.request_id)

    def _apply_changed(self, record: Changed) -> None:
        self._input(record)
        self._ops(record.block_ops)
        for request_id in record.values.get("preempted", ()):
            self._preempt(request_id)
        request = self.requests.get(record.request_id or "")
        if record.what == "priority" and request is not None:
            request.priority = record.values.get("priority", request.priority)
        elif record.what == "option":
            self.options.update(record.values)
        elif record.what == "edit_token" and self.executed is not None and "token_id" in record.values:
            edited = {record.request_id: [record.values["token_id"]]}
            sampled = [edited.get(name, tokens) for name, tokens in zip(self.batch, self.executed.sampled)]
            self.executed = msgspec.structs.replace(self.executed, sampled=sampled)
        self._queues(record.running, record.waiting)

    def _apply_scheduled(self, record: Scheduled) -> None:
        self._put_last_step_away()
        self._nothing_given()
        self._recent.append(record)
        self.busy_s += record.schedule_s
        self._ops(record.block_ops)
        for request_id in record.preempted:
            self._preempt(request_id)
        for request_id, tokens, computed in zip(record.request_ids, record.tokens, record.computed):
            if (request := self.requests.get(request_id)) is not None:
                request.status = "running"
                request.scheduled = tokens
                request.num_computed_tokens = computed + tokens
        for decision in record.decisions:
            request = self.requests.get(decision.request_id)
            if request is not None and decision.verdict in (Verdict.ADMITTED, Verdict.RESUMED):
                request.num_cached_tokens = decision.numbers.get("hit", 0)
        self._queues(record.running, record.waiting)
        self.scheduled, self.executed, self.updated, self.failed = record, None, None, None
        self.step, self.phase, self.at = record.step, "execute", record.at

    def _apply_updated(self, record: Updated) -> None:
        self._recent.append(record)
        self.busy_s += record.update_s
        self._ops(record.block_ops)
        for request_id, tokens in zip(record.request_ids, record.tokens):
            if tokens and (request := self.requests.get(request_id)) is not None:
                if len(request.token_ids) == request.num_prompt_tokens:
                    request.first_token_at = self.busy_s
                request.token_ids.extend(tokens)
                request.last_token_at = self.busy_s
        for end in record.finished:
            self._end(end.request_id, end.reason, end.stop_reason)
        self._queues(record.running, None)
        self.updated = record
        self.step, self.phase, self.at = record.step + 1, "schedule", record.at

    def _preempt(self, request_id: str) -> None:
        if (request := self.requests.get(request_id)) is not None:
            request.status = "preempted"
            request.num_computed_tokens = 0
            request.num_preemptions += 1
            request.scheduled = 0

    def _end(self, request_id: str, reason: str, stop_reason: int | str | None) -> None:
        if (request := self.requests.get(request_id)) is not None:
            request.status, request.finish_reason, request.stop_reason = "finished", reason, stop_reason
        if request_id in self.waiting:
            self.waiting.remove(request_id)
        elif request_id in self.running:
            self.running.remove(request_id)
        self.finished.append(request_id)
        while len(self.finished) > FINISHED_KEPT:
            self.requests.pop(self.finished.pop(0), None)

    def _queues(self, running: list[str] | None, waiting: list[str] | None) -> None:
        if running is not None:
            self.running = list(running)
        if waiting is not None:
            self.waiting = list(waiting)

    def _ops(self, ops: list[BlockOp]) -> None:
        """Replay what happened to the blocks."""
        owners, hashes, free = self.owners, self.hashes, self._free
        for op in ops:
            block, request = op.block_id, self.requests.get(op.request_id or "")
            if not 0 <= block < len(owners):
                continue
            match op.op:
                case Op.ALLOCATE | Op.HIT:
                    free.pop(block, None)
                    owners[block].append(op.request_id or "")
                    if request is not None:
                        if op.op is Op.ALLOCATE:
                            self._last_given[block] = (request.request_id, len(request.block_ids))
                        request.block_ids.append(block)
                case Op.EVICT | Op.UNCACHE:
                    hashes[block] = None
                case Op.CACHE:
                    hashes[block] = op.hash
                case Op.DEREF | Op.FREE_FRONT | Op.FREE_BACK:
                    _discard(owners[block], op.request_id or "")
                    if request is not None:
                        _discard(request.block_ids, block)
                    if op.op is not Op.DEREF:
                        free[block] = None
                        free.move_to_end(block, last=op.op is Op.FREE_BACK)

    # ---------------------------------------------------------------------------------------------------------- keyframes

    def keyframe(self) -> Keyframe:
        """All of it as one record. Shares nothing with the view."""
        return Keyframe(
            step=self.step,
            at=self.at,
            phase=self.phase,
            requests=[copy_state(request, RequestState) for request in self.requests.values()],
            running=list(self.running),
            waiting=list(self.waiting),
            finished=list(self.finished),
            owners=[list(owners) for owners in self.owners],
            hashes=list(self.hashes),
            free_queue=list(self._free),
            counters=dict(self.counters),
            options=dict(self.options),
            busy_s=self.busy_s,
        )

    @classmethod
    def from_keyframe(cls, header: Header, keyframe: Keyframe) -> Self:
        view = cls(header)
        view.apply(keyframe)
        return view

    def copy(self) -> EngineView:
        """The same moment, held still."""
        copy = EngineView.from_keyframe(self.header, self.keyframe())
        copy.painter = self.painter
        copy.texts = dict(self.texts)
        copy.scheduled, copy.executed, copy.updated = self.scheduled, self.executed, self.updated
        copy.failed, copy.last_record = self.failed, self.last_record
        copy._recent, copy._last_given = list(self._recent), dict(self._last_given)
        return copy

    def _apply_keyframe(self, frame: Keyframe) -> None:
        told = self.scheduled, self.executed, self.updated, self.failed, self._recent
        here = (self.step, self.phase) == (frame.step, frame.phase)
        self.clear()
        if here:  # a keyframe on the way: what the step did is still known
            self.scheduled, self.executed, self.updated, self.failed, self._recent = told
        self.step, self.phase, self.at = frame.step, frame.phase, frame.at
        self.requests = {state.request_id: copy_state(state, RequestView) for state in frame.requests}
        self.running, self.waiting, self.finished = list(frame.running), list(frame.waiting), list(frame.finished)
        self.owners = [list(owners) for owners in frame.owners]
        self.hashes = list(frame.hashes)
        self.counters, self.busy_s = dict(frame.counters), frame.busy_s
        if frame.options is not None:
            self.options = dict(frame.options)
        self._free = OrderedDict.fromkeys(frame.free_queue)
        for request in self.requests.values():
            for place, block in enumerate(request.block_ids):
                self._last_given.setdefault(block, (request.request_id, place))

    def canonical(self) -> dict[str, Any]:
        """The view as plain data, for comparing it with the engine and with the fold in the browser."""
        names = ("status", "num_tokens", "num_computed_tokens", "num_cached_tokens", "num_preemptions", "finish_reason")
        return {
            "step": self.step,
            "phase": self.phase,
            "running": list(self.running),
            "waiting": list(self.waiting),
            "finished": list(self.finished),
            "free_queue": list(self._free),
            "owners": [list(owners) for owners in self.owners],
            "hashes": list(self.hashes),
            "requests": {
                request_id: {name: getattr(request, name) for name in names} | {"block_ids": list(request.block_ids)}
                for request_id, request in self.requests.items()
            },
        }

    # ---------------------------------------------------------------------------------------------------------- in words

    def headline(self) -> str:
        """The moment in one sentence."""
        cached = sum(self.hashes[block] is not None for block in self._free)
        failed = self.failed
        told = f"next: {self.phase}"
        if failed is not None and (failed.step, failed.phase) == (self.step, self.phase):
            told = f"{self.phase} failed ({failed.error.partition(chr(10))[0]})"
        return (
            f"step {self.step}, {told} · {len(self.running)} running, {len(self.waiting)} waiting, "
            f"{len(self.finished)} finished · {self.free_blocks} of {counted(len(self.owners) - 1, 'block')} free"
            + (f" ({cached} still cached)" if cached else "")
        )

    def _rows(self, finished: int = 5) -> list[list[object]]:
        shown = self.running + self.waiting + self.finished[-finished:]
        return [self.requests[request_id].row() for request_id in shown if request_id in self.requests]

    def __str__(self) -> str:
        return self.headline() + "\n" + text_table(REQUEST_COLUMNS, self._rows(), "  ")

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        table = html_table(self.headline(), REQUEST_COLUMNS, self._rows())
        bundle: dict[str, Any] = {"text/plain": str(self), "text/html": table}
        return bundle if self.painter is None else bundle | self.painter(self)


def _discard(things: list[Any], thing: object) -> None:
    if thing in things:
        things.remove(thing)
