"""Trace: a run as a stream of records, in memory or in a .nbtrace file. Needs neither torch nor an engine.

The file: the magic b"nbtrace\\n", then blocks. A block is a little-endian header (what it holds, its size, the Adler-32 of
it) and a zlib-compressed body: records back to back, each after its length as a uint32. The first block holds the header
record alone. Blocks stand by themselves, so a file that is still being written, or was cut off, reads as far as it goes.
"""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

from nbengine.debug.display import illustrated
from nbengine.errors import TraceError
from nbengine.observe.log import StepLog
from nbengine.observe.records import SCHEMA_VERSION, AnyRecord, Header, Keyframe, Scheduled, Updated, decoder, encoder
from nbengine.observe.view import EngineView

MAGIC = b"nbtrace\n"
_BLOCK = struct.Struct("<4sII")  # kind, bytes of the body, their Adler-32
_HEADER, _RECORDS = b"HEAD", b"RECS"
BATCH_BYTES = 256 << 10
KEYFRAME_SHARE = 16
_LEVEL = 9
_known = msgspec.msgpack.Decoder(dict[str, Any])


class Trace:
    """records[0] is the header. problem: what could not be read of the file that it came from, None if all could."""

    def __init__(self, records: Iterable[AnyRecord], problem: str | None = None) -> None:
        self.records = list(records)
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
            if reached and (phase != "schedule" or isinstance(record, Scheduled)):
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
            for record in sparsely(self.records[1:]):
                writer.write(record if tensors else without_tensors(record))
        return Path(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, strict: bool = False) -> Self:
        """Read a .nbtrace file as far as it can be read. If that is not all of it (the file is cut off, or of a newer
        nbengine), a warning says what is missing, and so does `problem`; strict raises TraceError instead.

        Raises TraceError for a file that is none of ours.
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


class TraceWriter:
    """Appends records to a new file, in batches that each reach the disk whole: a killed process loses at most the last."""

    def __init__(self, path: str | os.PathLike[str], header: Header, batch_bytes: int = BATCH_BYTES) -> None:
        self._file: BinaryIO = Path(path).open("wb")  # noqa: SIM115 - it is closed by close()
        self._batch: list[bytes] = []
        self._size = 0
        self._batch_bytes = batch_bytes
        self._file.write(MAGIC)
        self._block(_HEADER, [encoder.encode(header)])

    def write(self, record: AnyRecord) -> None:
        self.write_encoded(encoder.encode(record))

    def write_encoded(self, data: bytes) -> None:
        self._batch.append(data)
        self._size += len(data)
        if self._size >= self._batch_bytes:
            self.flush()

    def flush(self) -> None:
        """Put what has been written on the disk now."""
        if self._batch:
            self._block(_RECORDS, self._batch)
        self._batch, self._size = [], 0

    def _block(self, kind: bytes, records: list[bytes]) -> None:
        body = zlib.compress(join_records(records), _LEVEL)
        self._file.write(_BLOCK.pack(kind, len(body), zlib.adler32(body)) + body)
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()


def sparsely(records: Iterable[AnyRecord]) -> Iterator[AnyRecord]:
    """The records without most of their keyframes: those that repeat what is known anyway are kept only where at least
    KEYFRAME_SHARE times their size has come since the last one, so that they never make up much of a file."""
    since = 0
    before: AnyRecord | None = None
    for record in records:
        size = len(encoder.encode(record))
        if isinstance(record, Keyframe):
            if isinstance(before, Updated) and since < KEYFRAME_SHARE * size:
                continue
            since = 0
        else:
            since += size
        before = record
        yield record


def without_tensors(record: AnyRecord) -> AnyRecord:
    if getattr(record, "batch", None) is None:
        return record
    return msgspec.structs.replace(record, batch=None)


def join_records(records: Iterable[bytes]) -> bytes:
    """Records back to back, each after its length as a little-endian uint32: the form that the Lab reads too."""
    return b"".join(part for data in records for part in (len(data).to_bytes(4, "little"), data))


def split_records(buffer: bytes) -> Iterator[bytes]:
    """The records of such a buffer; one that is cut off at its end is left out."""
    place = 4
    while (end := place + int.from_bytes(buffer[place - 4 : place], "little")) <= len(buffer):
        yield buffer[place:end]
        place = end + 4


def read_file(path: Path) -> tuple[list[AnyRecord], str | None]:
    """The records of a file, and what could not be read of it (None: nothing). Raises TraceError if there is no header."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise TraceError(
                f"{path} is no nbengine trace: it does not begin with {MAGIC!r}. Make one with dbg.trace.save(…)."
            )
        records: list[AnyRecord] = []
        newer: int | None = None
        unknown = 0
        problem: str | None = None
        for kind, body in _blocks(file):
            if kind is None:
                problem = f"the file is cut off or damaged {body.decode()}; what stands before was read"
                break
            for data in split_records(body):
                newer = newer or (_newer(data) if kind == _HEADER else None)
                record = _decode(data, lenient=newer is not None)
                if record is not None:
                    records.append(record)
                unknown += record is None
    if not records:
        raise TraceError(f"{path} ends before its header: nothing can be read of it.")
    if newer is not None:
        skipped = f"{unknown} of its records could not be understood and were left out"
        problem = f"the file has schema version {newer}, newer than {SCHEMA_VERSION}, which this nbengine reads: {skipped}"
    return records, problem


def _blocks(file: BinaryIO) -> Iterator[tuple[bytes | None, bytes]]:
    """(kind, body) of each block; at the first that is not whole what there is of it, then (None, where) and the end."""
    while head := file.read(_BLOCK.size):
        at = f"at byte {file.tell() - len(head)}".encode()
        if len(head) < _BLOCK.size:
            yield None, at
            return
        kind, size, check = _BLOCK.unpack(head)
        body = file.read(size) if kind.isalpha() else b""
        if len(body) < size or zlib.adler32(body) != check:
            if kind.isalpha() and len(body) < size:  # cut off, not damaged
                yield kind, zlib.decompressobj().decompress(body)
            yield None, at
            return
        yield kind, zlib.decompress(body)


def _newer(data: bytes) -> int | None:
    version = _known.decode(data).get("version")
    return version if isinstance(version, int) and version > SCHEMA_VERSION else None


def _decode(data: bytes, *, lenient: bool) -> AnyRecord | None:
    """The record; None for a kind that a later nbengine added or, if lenient, for one that it changed."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        if not lenient and _known.decode(data).get("t") in _KINDS:
            raise
        return None


_KINDS = frozenset(kind.__struct_config__.tag for kind in AnyRecord.__args__)
