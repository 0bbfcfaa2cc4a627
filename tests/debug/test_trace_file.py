"""Files that are cut off, damaged, foreign, older or newer: a TraceError, or a warning and what can be read."""

from __future__ import annotations

import argparse
import random
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nbengine.debug import trace_cli
from nbengine.debug.debugger import Debugger
from nbengine.debug.trace import Trace, TraceWriter
from nbengine.debug.trace_file import MAGIC, join_records, split_records
from nbengine.errors import TraceError
from nbengine.observe.records import SCHEMA_VERSION, AnyRecord, encoder
from tests.observe.engines import make_llm

Fields = dict[str, Any]


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Eight requests through a small pool: chunks, preemptions, hits, ends."""
    dbg = make_llm(num_blocks=14, max_model_len=48, max_num_batched_tokens=12).debug(tensors=False)
    for i in range(8):
        dbg.add("abcdefgh" + str(i) * (3 + i), max_tokens=14, temperature=0, ignore_eos=True)
    dbg.run()
    return dbg.trace


def written(trace: Trace, path: Path, batch_bytes: int = 2000) -> bytes:
    with TraceWriter(path, trace.header, batch_bytes=batch_bytes) as writer:
        for record in trace.records[1:]:
            writer.write(record)
    return path.read_bytes()


def block(kind: bytes, body: bytes) -> bytes:
    return struct.pack("<4sII", kind, len(body), zlib.adler32(body)) + body


def plain(records: list[AnyRecord]) -> list[Fields]:
    return [msgspec.msgpack.decode(encoder.encode(record)) for record in records]


def file_of(path: Path, records: list[Any], end: bytes = block(b"DONE", b"")) -> Path:
    """A file with these records, as they are."""
    head, *rest = (zlib.compress(join_records(map(msgspec.msgpack.encode, part))) for part in (records[:1], records[1:]))
    path.write_bytes(MAGIC + block(b"HEAD", head) + b"".join(block(b"RECS", body) for body in rest) + end)
    return path


def block_ends(data: bytes) -> list[int]:
    ends, place = [], len(MAGIC)
    while place < len(data):
        place += 12 + struct.unpack_from("<4sII", data, place)[1]
        ends.append(place)
    return ends


# ---------------------------------------------------------------------------------------------------- cut off and damaged


def test_a_whole_file_says_nothing(trace: Trace, tmp_path: Path) -> None:
    written(trace, tmp_path / "run.nbtrace")
    again = Trace.open(tmp_path / "run.nbtrace", strict=True)
    assert again.records == trace.records and again.problem is None


@pytest.mark.parametrize("batch_bytes", [500, 2000])
def test_a_cut_off_file_reads_up_to_its_last_whole_block(trace: Trace, tmp_path: Path, batch_bytes: int) -> None:
    path = tmp_path / "run.nbtrace"
    whole = written(trace, path, batch_bytes)
    lengths = set()
    for cut in (len(whole) - 20, len(whole) // 2, len(whole) // 3):
        path.write_bytes(whole[:cut])
        with pytest.warns(UserWarning, match="cut off or damaged at byte"):
            part = Trace.open(path)
        assert part.problem is not None and part.records == trace.records[: len(part.records)]
        lengths.add(len(part.records))
        with pytest.raises(TraceError, match="cut off"):
            Trace.open(path, strict=True)
    assert len(lengths) == 3 and min(lengths) > len(trace.records) // 8


def test_a_cut_between_two_blocks_is_told_from_an_end(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.nbtrace"
    whole = written(trace, path)
    ends = block_ends(whole)
    assert len(ends) > 5 and ends[-1] == len(whole)
    for end in ends[:-1]:
        path.write_bytes(whole[:end])
        with pytest.warns(UserWarning, match="was not closed.*all that is there was read"):
            part = Trace.open(path)
        assert part.records == trace.records[: len(part.records)]


def test_a_writer_that_was_stopped_by_an_error_does_not_say_that_this_is_all(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.nbtrace"
    with pytest.raises(KeyboardInterrupt), TraceWriter(path, trace.header, batch_bytes=500) as writer:
        for record in trace.records[1:40]:
            writer.write(record)
        raise KeyboardInterrupt
    with pytest.warns(UserWarning, match="was not closed"):
        assert len(Trace.open(path).records) > 10


def test_a_process_that_dies_loses_at_most_its_last_batch(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.nbtrace"
    writer = TraceWriter(path, trace.header, batch_bytes=4000)
    for record in trace.records[1:]:
        writer.write(record)
    with pytest.warns(UserWarning, match="was not closed"):
        kept = Trace.open(path)
    writer.close()
    missing = trace.records[len(kept.records) :]
    assert kept.records == trace.records[: len(kept.records)] and sum(len(encoder.encode(r)) for r in missing) < 4000


def test_a_file_of_before_the_end_marks_opens(trace: Trace, tmp_path: Path) -> None:
    path = file_of(tmp_path / "old.nbtrace", plain(trace.records), end=b"")
    assert Trace.open(path, strict=True).records == trace.records
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="cut off"):
        assert Trace.open(path).header == trace.header


def look_at(path: Path, trace: Trace) -> str:
    """Open a broken file and look at it: "refused", "warned" or "whole". Any error but a TraceError is the test's."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            part = Trace.open(path)
        except TraceError:
            return "refused"
        assert len(told) == (part.problem is not None)
        assert part.records == trace.records[: len(part.records)], "only what was written is read"
        assert str(part) and part.view.canonical()
        return "warned" if told else "whole"


@pytest.mark.parametrize("old", [False, True])
def test_hundreds_of_broken_files(trace: Trace, tmp_path: Path, old: bool) -> None:
    path = tmp_path / "run.nbtrace"
    whole = file_of(path, plain(trace.records), end=b"").read_bytes() if old else written(trace, path)
    chance = random.Random(7)
    seen = dict.fromkeys(("refused", "warned", "whole"), 0)
    for number in range(300):
        data = bytearray(whole)
        if number % 3:
            del data[chance.randrange(len(data) + 1) :]
        if number % 3 != 1 and data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        seen[look_at(path, trace)] += 1
    assert seen["whole"] <= 1 and seen["warned"] > 100 and seen["refused"] > 0


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04 something else", MAGIC[:5], MAGIC, MAGIC + b"garbage" * 40, MAGIC + b"HEAD", MAGIC + b"\0" * 90,
     MAGIC + block(b"HEAD", b"no zlib"), MAGIC + block(b"HEAD", zlib.compress(b"\4\0\0\0\xc1\xc1\xc1\xc1")),
     MAGIC + block(b"PART", b""), MAGIC + block(b"DONE", b"")],
)  # fmt: skip
def test_a_file_of_which_nothing_can_be_read(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.nbtrace"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"is no nbengine trace|nothing (of it )?can be read"):
        Trace.open(path)
    parser = argparse.ArgumentParser()
    trace_cli.add_arguments(parser)
    assert trace_cli.run(parser.parse_args(["info", str(path)])) == 1
    assert capsys.readouterr().err.startswith("nbengine trace: ")


def test_a_block_that_was_written_wrong_ends_the_reading(trace: Trace, tmp_path: Path) -> None:
    path = file_of(tmp_path / "x.nbtrace", plain(trace.records[:20]), end=block(b"PART", b"no deflate"))
    with pytest.warns(UserWarning, match="damaged at byte"):
        assert Trace.open(path).records == trace.records[:20]


def test_a_record_that_cannot_be_understood_is_left_out_and_counted(trace: Trace, tmp_path: Path) -> None:
    records = plain(trace.records[:20])
    records.insert(5, {"t": "executed", "step": "a word"})
    path = file_of(tmp_path / "x.nbtrace", records)
    with pytest.warns(UserWarning, match=r"1 of its records could not be understood \(executed\) and were left out"):
        assert Trace.open(path).records == trace.records[:20]


def test_records_in_a_buffer() -> None:
    parts = [b"a", b"", b"ccc" * 100]
    assert list(split_records(join_records(parts))) == parts


# ------------------------------------------------------------------------------------------------------- other versions


def renamed(kind: str) -> Callable[[list[Fields]], None]:
    def change(records: list[Fields]) -> None:
        for record in records:
            if record["t"] == kind:
                record["t"] = "new_" + kind

    return change


def without_field(kind: str, name: str) -> Callable[[list[Fields]], None]:
    def change(records: list[Fields]) -> None:
        for record in records:
            if record["t"] == kind:
                del record[name]

    return change


@pytest.mark.parametrize("kind", ["added", "scheduled", "executed", "updated"])
@pytest.mark.parametrize("how", ["renamed", "changed"])
def test_a_newer_file_is_looked_at_without_the_records_that_are_new(
    kind: str, how: str, trace: Trace, tmp_path: Path
) -> None:
    records = plain(trace.records)
    (renamed(kind) if how == "renamed" else without_field(kind, "step"))(records)
    records[0] |= {"version": SCHEMA_VERSION + 1, "colour": "green"}
    path = file_of(tmp_path / "new.nbtrace", records)
    missing = sum(record.__struct_config__.tag == kind for record in trace.records)
    said = f"version {SCHEMA_VERSION + 1}, newer than {SCHEMA_VERSION}, .*{missing} of its records .*{kind}.* were left out$"
    with pytest.warns(UserWarning, match=said) as told:
        new = Trace.open(path)
    assert len(told) == 1 and len(new.records) == len(trace.records) - missing
    last = max(getattr(record, "step", 0) for record in new.records)
    assert new.view.step in (last, last + 1) and "incomplete: " in repr(new)
    assert kind == "updated" or new.view_at(7).step == 7
    assert new.to_perfetto(tmp_path / "new.json").stat().st_size > 1000
    assert new.static_bundle()["text/html"]
    assert new.to_html(tmp_path / "new.html").stat().st_size > 1000
    with pytest.raises(TraceError, match="newer"):
        Trace.open(path, strict=True)


@pytest.mark.parametrize("change", [{"block_size": "sixteen"}, {"model": None}, {"num_blocks": 2.5}])
def test_a_newer_header_that_cannot_be_understood_is_called_newer(change: Fields, trace: Trace, tmp_path: Path) -> None:
    records = plain(trace.records[:5])
    records[0] |= {"version": SCHEMA_VERSION + 1} | change
    said = (
        rf"newer schema version {SCHEMA_VERSION + 1}, and this nbengine reads up to {SCHEMA_VERSION}.*{next(iter(change))}"
    )
    with pytest.raises(TraceError, match=said):
        Trace.open(file_of(tmp_path / "x.nbtrace", records))
    del records[0]["policy"]
    records[0].update(block_size=16, model="m", num_blocks=4)
    with pytest.raises(TraceError, match=r"newer schema version.*`policy`"):
        Trace.open(file_of(tmp_path / "x.nbtrace", records))


@pytest.mark.parametrize("version", ["2", None, 2.5, True, [1]])
def test_a_version_that_is_none(version: object, trace: Trace, tmp_path: Path) -> None:
    records = plain(trace.records[:5])
    records[0]["version"] = version
    with pytest.raises(TraceError, match=r"names .* as its schema version, which is none; this nbengine reads"):
        Trace.open(file_of(tmp_path / "x.nbtrace", records))


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_that_never_was_is_said(version: int, trace: Trace, tmp_path: Path) -> None:
    records = plain(trace.records[:5])
    records[0]["version"] = version
    with pytest.warns(UserWarning, match=f"schema version {version}, which never was"):
        assert len(Trace.open(file_of(tmp_path / "x.nbtrace", records)).records) == 5


def test_a_header_of_this_version_that_lacks_a_field(trace: Trace, tmp_path: Path) -> None:
    records = plain(trace.records[:5])
    del records[0]["block_size"]
    with pytest.raises(TraceError, match=r"its header cannot be understood.*`block_size`"):
        Trace.open(file_of(tmp_path / "x.nbtrace", records))
    with pytest.raises(TraceError, match=r"its header cannot be understood.*Texts record"):
        Trace.open(file_of(tmp_path / "x.nbtrace", [plain(trace.records[1:2])[0] | {"version": 1}]))


def test_the_debuggers_own_trace_needs_no_file() -> None:
    dbg: Debugger = make_llm().debug()
    assert "0 steps" in str(dbg.trace)
