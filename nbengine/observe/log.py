"""RecordLog: the records of a run, encoded, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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
    StepRecord,
    Texts,
    Updated,
    decoder,
    encoder,
)
from nbengine.observe.tables import html_table, text_table


class Entry(NamedTuple):
    kind: str  # the record's tag
    step: int
    data: bytes


class Segment:
    """Records from one keyframe to the next. keyframe: None if it begins where the engine had done nothing."""

    __slots__ = ("entries", "keyframe", "num_bytes", "step")

    def __init__(self, step: int, keyframe: bytes | None) -> None:
        self.step = step
        self.keyframe = keyframe
        self.entries: list[Entry] = []
        self.num_bytes = len(keyframe or b"")


class RecordLog:
    """Whole segments are dropped, oldest first, when there are more than `limit_records` records or `limit_bytes` bytes.

    The texts of tokens are kept beside: a viewer of any segment needs them.
    """

    def __init__(self, limit_records: int, limit_bytes: int) -> None:
        self.limit_records = limit_records
        self.limit_bytes = limit_bytes
        self.header: Header | None = None
        self.texts: dict[int, str] = {}
        self.segments: deque[Segment] = deque()
        self.num_records = 0
        self.num_bytes = 0

    # ------------------------------------------------------------------------------------------------------------ writing

    def begin(self, step: int, keyframe: bytes | None) -> None:
        """Start a segment: from here on one can look without what came before."""
        self.segments.append(Segment(step, keyframe))
        self.num_bytes += len(keyframe or b"")

    def restart(self, step: int, keyframe: bytes) -> None:
        """Forget all records, and begin at this keyframe."""
        self.segments.clear()
        self.num_records = self.num_bytes = 0
        self.begin(step, keyframe)

    def append(self, kind: str, step: int, data: bytes) -> None:
        segment = self.segments[-1]
        segment.entries.append(Entry(kind, step, data))
        segment.num_bytes += len(data)
        self.num_records += 1
        self.num_bytes += len(data)

    def is_crowded(self) -> bool:
        """Whether the last segment alone takes so much that a new one should begin."""
        last = self.segments[-1]
        return last.num_bytes * 4 > self.limit_bytes or len(last.entries) * 4 > self.limit_records

    def trim(self) -> None:
        """Drop the oldest segments until what is left fits, but never the last one."""
        while len(self.segments) > 1 and (self.num_records > self.limit_records or self.num_bytes > self.limit_bytes):
            oldest = self.segments.popleft()
            self.num_records -= len(oldest.entries)
            self.num_bytes -= oldest.num_bytes

    def truncate(self, step: int) -> bool:
        """Forget everything from the moment at which `step` was scheduled. False, and nothing changes, if that moment is
        not here any more."""
        if not self.segments or step < self.segments[0].step:
            return False
        while self.segments:
            segment = self.segments[-1]
            cut = next((i for i, e in enumerate(segment.entries) if e.kind == "scheduled" and e.step >= step), None)
            if cut is not None:
                dropped = segment.entries[cut:]
                del segment.entries[cut:]
                self.num_records -= len(dropped)
                segment.num_bytes -= sum(len(entry.data) for entry in dropped)
                self.num_bytes -= sum(len(entry.data) for entry in dropped)
            if segment.step <= step or len(self.segments) == 1:
                return True
            self.num_records -= len(segment.entries)
            self.num_bytes -= segment.num_bytes
            self.segments.pop()
        return True

    # ------------------------------------------------------------------------------------------------------------ reading

    @property
    def first_step(self) -> int:
        return self.segments[0].step if self.segments else 0

    def stream(self, segments: Sequence[Segment] | None = None) -> Iterator[bytes]:
        """Header, texts, keyframe and records: all that is kept, or only these segments."""
        if self.header is not None:
            yield encoder.encode(self.header)
        if self.texts:
            yield encoder.encode(Texts(token_ids=list(self.texts), texts=list(self.texts.values())))
        for segment in list(self.segments) if segments is None else segments:
            if segment.keyframe is not None:
                yield segment.keyframe
            for entry in segment.entries:
                yield entry.data

    def tail(self) -> Iterator[bytes]:
        """What a viewer needs who comes late: from the last keyframe on."""
        return self.stream([self.segments[-1]] if self.segments else [])

    def upto(self, step: int) -> Iterator[bytes]:
        """The stream from the last keyframe that is not after `step`."""
        after = [i for i, segment in enumerate(self.segments) if segment.step <= step]
        return self.stream(list(self.segments)[after[-1] if after else 0 :])


class StepLog(Sequence[StepRecord]):
    """The steps that a log still holds, as StepRecords. `log[-1]` is the last one; `log.step(41)` the one numbered 41."""

    def __init__(self, records: Iterator[AnyRecord]) -> None:
        self._steps = group_steps(records)

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        return self._steps[index]

    def step(self, number: int) -> StepRecord:
        """The step with this number. Raises LookupError if it is not here."""
        found = next((record for record in self._steps if record.step == number), None)
        if found is None:
            span = f"steps {self._steps[0].step} to {self._steps[-1].step}" if self._steps else "none"
            raise LookupError(f"Step {number} is not recorded; recorded: {span}.")
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict a step, for a DataFrame: see StepRecord.facts."""
        return [record.facts() for record in self._steps]

    def _table(self, most: int = 20) -> tuple[str, list[str], list[list[object]]]:
        rows = [record.facts() for record in self._steps[-most:]]
        columns = list(rows[0]) if rows else []
        cells: list[list[object]] = [[_short(row[name]) for name in columns] for row in rows]
        return f"{len(self)} steps" + (f", the last {most}" if len(self) > most else ""), columns, cells

    def __repr__(self) -> str:
        title, columns, cells = self._table()
        return f"{title}\n{text_table(columns, cells, '  ')}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html_table(*self._table())}


def _short(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)


def group_steps(records: Iterator[AnyRecord]) -> list[StepRecord]:
    """Records as steps: each with the inputs that came before or during it. One that was only gone back to is none."""
    steps: dict[int, StepRecord] = {}
    policy = ""
    for record in records:
        if isinstance(record, Header):
            policy = record.policy
        elif isinstance(record, Keyframe):
            policy = (record.options or {}).get("policy", policy)
        elif isinstance(record, Changed) and record.what == "option":
            policy = record.values.get("policy", policy)
        if isinstance(record, Header | Texts | Keyframe):
            continue
        step = steps.setdefault(record.step, StepRecord(step=record.step))
        match record:
            case Added() | Aborted() | Changed():
                step.inputs.append(record)
            case Scheduled():
                step.scheduled, step.policy = record, policy
            case Executed():
                step.executed = record
            case Updated():
                step.updated = record
            case Failed():
                step.failed = record
    return [step for step in steps.values() if _has_begun(step)]


def _has_begun(step: StepRecord) -> bool:
    phases = step.scheduled or step.executed or step.updated or step.failed
    return phases is not None or not all(isinstance(i, Changed) and i.what == "rewind" for i in step.inputs)


def decoded(stream: Iterator[bytes]) -> Iterator[AnyRecord]:
    return (decoder.decode(data) for data in stream)
