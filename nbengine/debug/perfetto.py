"""A run as Chrome trace events (JSON), which ui.perfetto.dev and chrome://tracing open.

Two processes: the engine (its phases, and counters) and the requests, each on a lane; a lane is used again when its request
has ended, so there are as many as requests lived at once. Times are microseconds from the start of the recording.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

from nbengine.observe.records import (
    Aborted,
    Added,
    AnyRecord,
    Changed,
    Executed,
    Failed,
    Header,
    Keyframe,
    Scheduled,
    Updated,
)
from nbengine.observe.view import EngineView
from nbengine.scheduler.decision import Verdict

ENGINE, REQUESTS = 1, 2  # process ids
_PHASES_THREAD = 1
_NAMES = {
    Verdict.DECODE: "decode",
    Verdict.PREFILL: "prefill",
    Verdict.ADMITTED: "prefill",
    Verdict.RESUMED: "prefill again",
}

Event = dict[str, Any]


def chrome_trace(records: Iterable[AnyRecord]) -> dict[str, Any]:
    """The trace as a JSON object."""
    writer = _Writer()
    events = [event for record in records for event in writer.events(record)]
    events += writer.close()
    return {"traceEvents": [*writer.metadata(), *events], "displayTimeUnit": "ms", "otherData": writer.about}


class _Writer:
    def __init__(self) -> None:
        self.view: EngineView | None = None
        self.about: dict[str, str] = {}
        self._lane_of: dict[str, int] = {}
        self._free_lanes: list[int] = []
        self._num_lanes = 0
        self._since: dict[str, tuple[str, float]] = {}  # request -> what it is waiting for or held up by, since when
        self._kinds: dict[str, str] = {}  # request -> what it does in the step under way
        self._step_at = 0.0

    def events(self, record: AnyRecord) -> Iterator[Event]:
        if isinstance(record, Header):
            self.view = EngineView(record)
            self.about = {"engine": record.engine, "model": record.model, "created": record.created}
            return
        if self.view is None:
            return
        self.view.apply(record)
        match record:
            case Added():
                self._enter(record.request_id, record.at)
            case Scheduled():
                yield from self._scheduled(record)
            case Executed():
                yield from self._executed(record)
            case Updated():
                yield from self._updated(record)
            case Aborted():
                yield from self._leave(record.request_id, record.at, record.reason)
            case Keyframe():
                yield from self._keyframe(record)
            case Changed():
                yield _instant(f"{record.what} {record.request_id or ''}".strip(), record.at, dict(record.values))
                for request_id in record.values.get("preempted", ()):
                    yield from self._preempted(request_id, record.at)
            case Failed():
                yield _instant(f"{record.phase} failed", record.at, {"error": record.error})

    def _keyframe(self, record: Keyframe) -> Iterator[Event]:
        """Who is alive there may have come unseen, and who is not may have left unseen."""
        known = {state.request_id: state for state in record.requests}
        for request_id in list(self._lane_of):
            if request_id not in known or known[request_id].status == "finished":
                reason = known[request_id].finish_reason if request_id in known else None
                yield from self._leave(request_id, record.at, reason or "gone")
        for request_id, state in known.items():
            if state.status != "finished":
                self._enter(request_id, record.at, None if state.status == "running" else state.status)

    def _scheduled(self, record: Scheduled) -> Iterator[Event]:
        start = self._step_at = record.at - record.schedule_s
        args = {"step": record.step, "tokens": sum(record.tokens), "requests": len(record.request_ids)}
        yield _slice("schedule", ENGINE, _PHASES_THREAD, start, record.schedule_s, args)
        for request_id in record.preempted:
            yield from self._preempted(request_id, record.at)
        self._kinds = {}
        for decision in record.decisions:
            if decision.verdict in _NAMES:
                self._kinds[decision.request_id] = _NAMES[decision.verdict]
        for request_id in record.request_ids:
            self._kinds.setdefault(request_id, "compute")
            self._enter(request_id, record.at)
            yield from self._end_wait(request_id, start)

    def _executed(self, record: Executed) -> Iterator[Event]:
        start = record.at - record.execute_s
        yield _slice(
            "execute", ENGINE, _PHASES_THREAD, start, record.execute_s, {"step": record.step, "thread": record.thread}
        )
        at = start
        for name in ("prepare", "forward", "sample"):
            seconds = float(getattr(record, f"{name}_s"))
            if seconds > 0:
                seconds = min(seconds, record.at - at)
                yield _slice(name, ENGINE, _PHASES_THREAD, at, seconds, {})
                at += seconds

    def _updated(self, record: Updated) -> Iterator[Event]:
        assert self.view is not None
        yield _slice("update", ENGINE, _PHASES_THREAD, record.at - record.update_s, record.update_s, {"step": record.step})
        tokens = self.view.batch
        for request_id, kind in self._kinds.items():
            if request_id in self._lane_of:
                args = {"step": record.step, "request": request_id, "tokens": tokens.get(request_id, 0)}
                yield _slice(kind, REQUESTS, self._lane_of[request_id], self._step_at, record.at - self._step_at, args)
        for end in record.finished:
            yield from self._leave(end.request_id, record.at, end.reason)
        yield _counter("KV cache usage", record.at, {"used blocks": self.view.used_blocks})
        queues = {"running": len(self.view.running), "waiting": len(self.view.waiting)}
        yield _counter("queues", record.at, queues)
        prefill = sum(count for name, count in tokens.items() if self._kinds.get(name) != "decode")
        yield _counter("tokens per step", record.at, {"prefill": prefill, "decode": sum(tokens.values()) - prefill})

    # -------------------------------------------------------------------------------------------------------------- lanes

    def _enter(self, request_id: str, at: float, held_by: str | None = "waiting") -> None:
        if request_id not in self._lane_of:
            if not self._free_lanes:
                self._num_lanes += 1
                heapq.heappush(self._free_lanes, self._num_lanes)
            self._lane_of[request_id] = heapq.heappop(self._free_lanes)
            if held_by is not None:
                self._since[request_id] = (held_by, at)

    def _end_wait(self, request_id: str, at: float) -> Iterator[Event]:
        waited = self._since.pop(request_id, None)
        if waited is not None and at > waited[1]:
            yield _slice(waited[0], REQUESTS, self._lane_of[request_id], waited[1], at - waited[1], {"request": request_id})

    def _preempted(self, request_id: str, at: float) -> Iterator[Event]:
        if request_id in self._lane_of:
            self._kinds.pop(request_id, None)
            self._since[request_id] = ("preempted", at)
            yield _mark(f"{request_id} preempted", self._lane_of[request_id], at)

    def _leave(self, request_id: str, at: float, reason: str) -> Iterator[Event]:
        if request_id in self._lane_of:
            yield from self._end_wait(request_id, at)
            lane = self._lane_of.pop(request_id)
            self._kinds.pop(request_id, None)
            heapq.heappush(self._free_lanes, lane)
            yield _mark(f"{request_id} {reason}", lane, at)

    def close(self) -> Iterator[Event]:
        """What was still waiting when the recording ended."""
        for request_id in list(self._since):
            yield from self._end_wait(request_id, self.view.at if self.view else 0.0)

    def metadata(self) -> Iterator[Event]:
        yield _name("process_name", ENGINE, 0, "engine")
        yield _name("thread_name", ENGINE, _PHASES_THREAD, "phases")
        yield _name("process_name", REQUESTS, 0, "requests")
        for lane in range(1, self._num_lanes + 1):
            yield _name("thread_name", REQUESTS, lane, f"lane {lane}")


def _us(seconds: float) -> float:
    return round(max(0.0, seconds) * 1e6, 3)


def _slice(name: str, process: int, thread: int, start: float, seconds: float, args: dict[str, Any]) -> Event:
    return {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": _us(start), "dur": _us(seconds), "args": args}


def _counter(name: str, at: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": ENGINE, "ts": _us(at), "args": values}


def _mark(name: str, lane: int, at: float) -> Event:
    return {"ph": "i", "s": "t", "name": name, "pid": REQUESTS, "tid": lane, "ts": _us(at)}


def _instant(name: str, at: float, args: dict[str, Any]) -> Event:
    return {"ph": "i", "s": "p", "name": name, "pid": ENGINE, "tid": _PHASES_THREAD, "ts": _us(at), "args": args}


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
