"""Trace: a run as a stream of records, in memory or in a .nbtrace file. Needs neither torch nor an engine."""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec

from nbengine.debug.display import illustrated
from nbengine.debug.trace_file import TraceWriter, read_file
from nbengine.errors import TraceError
from nbengine.observe.log import StepLog
from nbengine.observe.records import AnyRecord, Changed, Executed, Header, Keyframe, Scheduled, Texts, Updated, encoder
from nbengine.observe.view import EngineView

__all__ = ["Sparse", "Trace", "TraceWriter", "without_tensors", "without_undone"]

KEYFRAME_SHARE = 16


class Trace:
    """records[0] is the header; what a rewind took back is not among them. problem: what could not be read of the file that
    it came from, None if all could."""

    def __init__(self, records: Iterable[AnyRecord], problem: str | None = None) -> None:
        self.records = without_undone(records)
        self.problem = problem
        if not self.records or not isinstance(self.records[0], Header):
            raise TraceError("A trace begins with a header record, and this one does not. Record it with llm.debug().")

    @property
    def header(self) -> Header:
        header = self.records[0]
        assert isinstance(header, Header)
        return header

    @cached_property
    def steps(self) -> StepLog:
        return StepLog(iter(self.records))

    @cached_property
    def view(self) -> EngineView:
        """How it ended."""
        return EngineView.fold(self.records)

    def view_at(self, step: int, phase: str = "schedule") -> EngineView:
        """The view as it was before `phase` of `step`. Folds from the last keyframe before it."""
        places = [place for _step, place in self._keyframes]
        start = places[bisect_right([frame_step for frame_step, _place in self._keyframes], step) - 1] if places else 0
        view = EngineView(self.header)
        for record in self.records[max(1, start) :]:
            reached = (view.step, view.phase) == (step, phase)
            if reached and (phase != "schedule" or isinstance(record, Scheduled | Executed | Updated)):
                break  # before schedule: with the inputs that came before it
            view.apply(record)
        if (view.step, view.phase) != (step, phase):
            raise LookupError(f"Step {step} before {phase} is not in this trace: it ends at step {self.view.step}.")
        return view

    @cached_property
    def _keyframes(self) -> list[tuple[int, int]]:
        """(step, place among the records), for seeking; the place before the first record stands for step -1."""
        frames = [(r.step, place) for place, r in enumerate(self.records) if isinstance(r, Keyframe)]
        return [(-1, 1), *frames] if not frames or frames[0][1] > 1 else frames

    # -------------------------------------------------------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str], *, tensors: bool = False) -> Path:
        """Write a .nbtrace file. tensors: with each step's batch tensors, which are most of its size."""
        with TraceWriter(path, self.header) as writer:
            for record in filter(Sparse().keeps, self.records[1:]):
                writer.write(record if tensors else without_tensors(record))
        return Path(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, strict: bool = False) -> Self:
        """Read a .nbtrace file as far as it can be read. If it is cut off, damaged, or of a newer nbengine, a warning says
        what is missing, and so does `problem`; strict raises TraceError instead.

        Raises TraceError for a file of which nothing can be read: a foreign one, say.
        """
        records, problem = read_file(Path(path))
        if problem and strict:
            raise TraceError(f"{path}: {problem}")
        if problem:
            warnings.warn(f"{path}: {problem}", stacklevel=2)
        return cls(records, problem)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one page with the Lab and this trace in it; it needs no network and no kernel."""
        from nbengine.debug.display import static_page

        Path(path).write_text(static_page([encoder.encode(record) for record in self.records]), encoding="utf-8")
        return Path(path)

    def to_perfetto(self, path: str | os.PathLike[str]) -> Path:
        """Write Chrome trace-event JSON, which ui.perfetto.dev and chrome://tracing open."""
        from nbengine.debug.perfetto import chrome_trace

        Path(path).write_bytes(msgspec.json.encode(chrome_trace(self.records)))
        return Path(path)

    def static_bundle(self) -> dict[str, Any]:
        """The run without a widget: text, a table, a picture."""
        from nbengine.debug.plots import overview_png

        bundle = {**self.view._repr_mimebundle_(), "text/plain": str(self)}
        return illustrated(bundle, overview_png(self.records))

    @property
    def lab(self) -> Any:
        """A Lab that plays this run. Raises NBEngineError without nbengine_widgets."""
        from nbengine.debug.display import make_lab
        from nbengine.debug.lab_source import TraceSource

        return make_lab(TraceSource(self))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        from nbengine.debug.display import has_lab

        return self.lab._repr_mimebundle_(**kwargs) if has_lab() else self.static_bundle()

    def __str__(self) -> str:
        header, view = self.header, self.view
        lines = [
            f"trace of {header.engine}, model {header.model}, recorded {header.created}",
            f"  {len(self.steps)} steps, {len(self.records):,} records, {view.at:.2f} s",
            f"  {header.num_blocks - 1} KV blocks of {header.block_size} tokens, token budget {header.token_budget}, "
            f"max_num_seqs {header.max_num_seqs}, {header.policy}",
            f"  at its end: {view.headline()}",
        ]
        return "\n".join(lines + ([f"  incomplete: {self.problem}"] if self.problem else []))

    __repr__ = __str__


class Sparse:
    """Which records a file is to hold: all but most of the keyframes. Those that repeat what is known anyway are kept only
    where at least KEYFRAME_SHARE times their size has come since the last one, so that they never make up much of a file."""

    def __init__(self) -> None:
        self._since = 0
        self._before: AnyRecord | None = None

    def keeps(self, record: AnyRecord, size: int | None = None) -> bool:
        """Whether to write this one, the next of the stream. size: of it encoded, if that is known."""
        size = len(encoder.encode(record)) if size is None else size
        if not isinstance(record, Keyframe):
            self._since += size
        elif isinstance(self._before, Updated) and self._since < KEYFRAME_SHARE * size:
            return False
        else:
            self._since = 0
        self._before = record
        return True


def without_tensors(record: AnyRecord) -> AnyRecord:
    if getattr(record, "batch", None) is None:
        return record
    return msgspec.structs.replace(record, batch=None)


def without_undone(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """The records without the steps that a rewind took back, as a run's own log keeps them. A file that was written while
    the run went on holds those too."""
    kept: list[AnyRecord] = []
    for record in records:
        if isinstance(record, Changed) and record.what == "rewind":
            place = _place_before(kept, record.step)
            kept[place:] = [undone for undone in kept[place:] if isinstance(undone, Texts)]
        kept.append(record)
    return kept


def _place_before(records: list[AnyRecord], step: int) -> int:
    """Where `step` begins: after the inputs that came before it."""
    place = len(records)
    for number in range(len(records) - 1, 0, -1):
        at = getattr(records[number], "step", None)  # texts have none
        if at is not None and at < step:
            break
        if at is not None and (at > step or isinstance(records[number], Scheduled)):
            place = number
    return place
