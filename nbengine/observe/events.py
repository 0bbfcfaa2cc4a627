"""What happened, by name: the events that breakpoints wait for, read off the records."""

from __future__ import annotations

import msgspec

from nbengine.kv_cache.ops import Op
from nbengine.observe.records import Aborted, Added, AnyRecord, Changed, Executed, Failed, Scheduled, Updated
from nbengine.scheduler.decision import Decision, Verdict

EVENT_NAMES = (
    "added",
    "aborted",
    "admitted",
    "resumed",
    "chunked",
    "prefix_hit",
    "prefix_miss",
    "preempted",
    "evicted",
    "executed",
    "finished",
    "violation",
    "failed",
    "changed",
)


class Event(msgspec.Struct, frozen=True):
    """One thing that happened. numbers: as in the Decision it comes from, or seconds."""

    name: str
    step: int
    request_id: str | None = None
    block_id: int | None = None
    numbers: dict[str, float] = {}
    cause: str | None = None
    detail: str = ""

    def __str__(self) -> str:
        who = self.request_id or (f"block {self.block_id}" if self.block_id is not None else "")
        facts = ", ".join(f"{key} {value:g}" for key, value in self.numbers.items())
        text = f"{who} {self.name.replace('_', ' ')}".strip()
        if self.cause:
            text += f" for {self.cause}"
        if facts:
            text += f" ({facts})"
        return f"{text}: {self.detail}" if self.detail else text

    def __repr__(self) -> str:
        return f"step {self.step}: {self}"


def events_of(record: AnyRecord) -> list[Event]:
    """The events that a record tells of, in the order in which they happened."""
    match record:
        case Scheduled():
            return _of_scheduled(record)
        case Executed():
            return [Event("executed", record.step, numbers={"seconds": record.execute_s})]
        case Updated():
            done = [Event("finished", record.step, end.request_id, detail=end.reason) for end in record.finished]
            return done + [Event("violation", record.step, detail=text) for text in record.violations or ()]
        case Added():
            return [Event("added", record.step, record.request_id)]
        case Aborted():
            if record.reason == "stop":  # a stop string: found by the front, and an end like others
                return [Event("finished", record.step, record.request_id, detail="stop")]
            return [Event("aborted", record.step, record.request_id, detail=record.reason)]
        case Changed():
            return [Event("changed", record.step, record.request_id, detail=record.what)]
        case Failed():
            return [Event("failed", record.step, detail=record.error)]
        case _:
            return []


def _of_scheduled(record: Scheduled) -> list[Event]:
    events: list[Event] = []
    for decision in record.decisions:
        events += _of_decision(record.step, decision)
    told = {event.request_id for event in events if event.name == "preempted"}
    events += [Event("preempted", record.step, request_id) for request_id in record.preempted if request_id not in told]
    events += [Event("evicted", record.step, op.request_id, op.block_id) for op in record.block_ops if op.op is Op.EVICT]
    return events


def _of_decision(step: int, decision: Decision) -> list[Event]:
    who, numbers = decision.request_id, {key: float(value) for key, value in decision.numbers.items()}
    match decision.verdict:
        case Verdict.PREEMPTED | Verdict.SELF_PREEMPTED:
            return [Event("preempted", step, who, numbers=numbers, cause=decision.cause)]
        case Verdict.ADMITTED | Verdict.RESUMED:
            name = "admitted" if decision.verdict is Verdict.ADMITTED else "resumed"
            events = [Event(name, step, who, numbers=numbers)]
            events.append(Event("prefix_hit" if numbers.get("hit") else "prefix_miss", step, who, numbers=numbers))
        case Verdict.PREFILL:
            events = []
        case _:
            return []
    if numbers.get("chunked"):
        events.append(Event("chunked", step, who, numbers=numbers))
    return events
