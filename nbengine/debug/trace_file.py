"""The .nbtrace file: what it is, how it is written, and how as much as possible of a broken one is read.

The magic b"nbtrace\\n", then blocks. A block is a little-endian header (its kind, its body's size, the Adler-32 of that) and
a body:

    HEAD  the header record, a zlib stream of its own
    PART  a piece of one zlib stream that goes through all PARTs, flushed at its end: so a small block costs next to nothing
    DONE  nothing: the file was closed
    RECS  in files of before the PARTs, which had no DONE: records, a zlib stream of its own

Records stand back to back, each after its length as a little-endian uint32. Each block is checked before it is believed, so
a file that is still being written, was cut off or is damaged reads as far as its last whole block.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

from nbengine.errors import TraceError
from nbengine.observe.records import SCHEMA_VERSION, AnyRecord, Header, decoder, encoder

MAGIC = b"nbtrace\n"
BATCH_BYTES = 8 << 10  # of records, before they are compressed: what a file that is cut off lacks at most
_BLOCK = struct.Struct("<4sII")
_HEADER, _PART, _DONE, _OLD_RECORDS = b"HEAD", b"PART", b"DONE", b"RECS"
_LEVEL = 9
_plain = msgspec.msgpack.Decoder(dict[str, Any])


class TraceWriter:
    """Appends records to a new file, in blocks that each reach the disk whole: a killed process loses at most the last."""

    def __init__(self, path: str | os.PathLike[str], header: Header, batch_bytes: int = BATCH_BYTES) -> None:
        self._file: BinaryIO = Path(path).open("wb")  # noqa: SIM115 - it is closed by close()
        self._deflate = zlib.compressobj(_LEVEL)
        self._batch: list[bytes] = []
        self._size = 0
        self._batch_bytes = batch_bytes
        self._file.write(MAGIC)
        self._block(_HEADER, zlib.compress(join_records([encoder.encode(header)])))

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
            body = self._deflate.compress(join_records(self._batch)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
            self._block(_PART, body)
        self._batch, self._size = [], 0

    def _block(self, kind: bytes, body: bytes) -> None:
        self._file.write(_BLOCK.pack(kind, len(body), zlib.adler32(body)) + body)
        self._file.flush()

    def close(self) -> None:
        """Write what is left, and that this is all."""
        if self._file.closed:
            return
        try:
            self.flush()
            self._block(_DONE, b"")
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:  # it is not all, so the file must not say that it is
            self._file.close()


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
        blocks = _Blocks(file)
        told = list(blocks)
    if not told:
        raise TraceError(f"{path} ends before its header, or that is damaged: nothing can be read of it.")
    header, problems = _read_header(path, told[0])
    found = [(data, _decode(data)) for data in told[1:]]
    unknown = [_kind_of(data) for data, record in found if record is None]
    if unknown:
        kinds = ", ".join(sorted(set(unknown)))
        problems.append(f"{len(unknown)} of its records could not be understood ({kinds}) and were left out")
    if blocks.problem:
        problems.append(blocks.problem)
    return [header, *(record for _data, record in found if record is not None)], "; ".join(problems) or None


class _Blocks:
    """The encoded records of a file, the header first, as far as its blocks are whole. problem: known at the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self.problem: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        stream = zlib.decompressobj()
        kind = b""
        first = True
        while (at := self._file.tell()) < self._size:
            block = self._block()
            try:
                records = b"" if block is None else _records_of(*block, stream)
            except zlib.error:  # what was written is there, but it was written wrong
                block = None
            if block is None or (block[0] == _HEADER) is not first:
                self.problem = f"the file is cut off or damaged at byte {at}; what stands before was read"
                return
            kind, first = block[0], False
            yield from split_records(records)
        if kind not in (_DONE, _OLD_RECORDS):
            self.problem = (
                "the file was not closed: its process was killed, or still writes to it; all that is there was read"
            )

    def _block(self) -> tuple[bytes, bytes] | None:
        """The next one, None if it is not whole."""
        head = self._file.read(_BLOCK.size)
        if len(head) < _BLOCK.size:
            return None
        kind, size, check = _BLOCK.unpack(head)
        if kind not in (_HEADER, _PART, _DONE, _OLD_RECORDS) or size > self._size - self._file.tell():
            return None
        body = self._file.read(size)
        return (kind, body) if zlib.adler32(body) == check else None


def _records_of(kind: bytes, body: bytes, stream: Any) -> bytes:
    if kind == _PART:
        records: bytes = stream.decompress(body)
        return records
    return b"" if kind == _DONE else zlib.decompress(body)


def _read_header(path: Path, data: bytes) -> tuple[Header, list[str]]:
    """The header, and what is to be said of its version. Raises TraceError for one that cannot be understood."""
    try:
        version: Any = _plain.decode(data).get("version")
    except (msgspec.DecodeError, ValueError) as error:
        raise TraceError(f"{path}: its header is no record of nbengine ({error}): nothing can be read of it.") from error
    if not isinstance(version, int) or isinstance(version, bool):
        raise TraceError(
            f"{path}: its header names {version!r} as its schema version, which is none; "
            f"this nbengine reads the versions 1 to {SCHEMA_VERSION}."
        )
    newer = version > SCHEMA_VERSION
    try:
        header = decoder.decode(data)
        if not isinstance(header, Header):
            raise msgspec.ValidationError(f"it is a {type(header).__name__} record")
    except msgspec.ValidationError as error:
        if not newer:
            raise TraceError(f"{path}: its header cannot be understood ({error}).") from error
        raise TraceError(
            f"{path} is of the newer schema version {version}, and this nbengine reads up to {SCHEMA_VERSION}: its header "
            f"cannot be understood ({error}). Open it with the nbengine that wrote it, or a later one."
        ) from error
    if newer:
        return header, [f"the file has schema version {version}, newer than {SCHEMA_VERSION}, which this nbengine reads"]
    if version < 1:
        return header, [f"the file has schema version {version}, which never was: it was read as {SCHEMA_VERSION}"]
    return header, []


def _decode(data: bytes) -> AnyRecord | None:
    """The record; None for one of a kind or a shape that this nbengine does not know."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None


def _kind_of(data: bytes) -> str:
    try:
        return str(_plain.decode(data).get("t", "?"))
    except (msgspec.DecodeError, ValueError):
        return "?"
