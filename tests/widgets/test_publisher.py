"""The channel's kernel end: numbered, acknowledged, bounded, never in the engine's way."""

from __future__ import annotations

import struct
import threading
import time
from typing import Any

import pytest
from nbengine_widgets import publisher as module
from nbengine_widgets.publisher import RATE, UNACKNOWLEDGED, Publisher


class Origin:
    """A source that keeps the records from `kept` on."""

    def __init__(self, kept: int = 0) -> None:
        self.records: list[bytes] = []
        self.kept = kept

    def records_since(self, number: int) -> list[bytes] | None:
        return None if number < self.kept else self.records[number:]

    def keyframe(self) -> tuple[int, list[bytes]]:
        return len(self.records), [b"header", b"keyframe"]

    def status(self) -> dict[str, Any]:
        return {"state": "paused"}


class Wire:
    """What a browser sees; acknowledges by hand."""

    def __init__(self, origin: Origin, **options: Any) -> None:
        self.messages: list[tuple[dict[str, Any], list[bytes]]] = []
        self.origin = origin
        self.publisher = Publisher(lambda message, buffers: self.messages.append((message, buffers)), origin, **options)
        self.publisher._start = lambda: None  # type: ignore[method-assign]  # the tests flush by hand

    def record(self, *records: bytes) -> None:
        for record in records:
            self.origin.records.append(record)
            self.publisher.publish(len(self.origin.records) - 1, record)

    @property
    def data(self) -> list[dict[str, Any]]:
        return [message for message, _ in self.messages if message["kind"] in ("batch", "keyframe")]

    def unpacked(self) -> list[bytes]:
        return [record for _, buffers in self.messages for buffer in buffers for record in unpack(buffer)]


def unpack(buffer: bytes) -> list[bytes]:
    records, at = [], 0
    while at < len(buffer):
        (size,) = struct.unpack_from("<I", buffer, at)
        records.append(buffer[at + 4 : at + 4 + size])
        at += 4 + size
    return records


def test_nothing_is_sent_before_a_browser_is_ready() -> None:
    wire = Wire(Origin())
    wire.record(b"a", b"b")
    assert not wire.publisher.flush()
    wire.publisher.handle({"kind": "ready", "have": 0})
    assert wire.publisher.flush()
    assert wire.unpacked() == [b"a", b"b"]
    assert [message["kind"] for message, _ in wire.messages] == ["status", "batch"]


def test_batches_are_numbered_and_at_most_two_are_unacknowledged() -> None:
    wire = Wire(Origin())
    wire.publisher.handle({"kind": "ready", "have": 0})
    for i in range(6):
        wire.record(bytes([i]))
        wire.publisher.flush()
    assert [(m["seq"], m["first"], m["count"]) for m in wire.data] == [(1, 0, 1), (2, 1, 1)]
    assert len(wire.data) == UNACKNOWLEDGED
    wire.publisher.handle({"kind": "ack", "seq": 1})
    wire.publisher.flush()
    assert wire.data[-1] == {"kind": "batch", "seq": 3, "first": 2, "count": 4}
    assert wire.unpacked() == [bytes([i]) for i in range(6)]


def test_an_acknowledgement_from_the_future_counts_for_nothing() -> None:
    wire = Wire(Origin())
    wire.publisher.handle({"kind": "ready", "have": 0})
    wire.publisher.handle({"kind": "ack", "seq": 99})
    for _ in range(4):
        wire.record(b"x")
        wire.publisher.flush()
    assert len(wire.data) == UNACKNOWLEDGED


def test_a_late_view_gets_all_that_the_source_still_has() -> None:
    origin = Origin()
    origin.records = [b"h", b"1", b"2"]
    wire = Wire(origin, first=3)
    wire.record(b"3")
    wire.publisher.handle({"kind": "ready", "have": 0})
    while wire.publisher.flush():
        wire.publisher.handle({"kind": "ack", "seq": wire.data[-1]["seq"]})
    assert wire.unpacked() == [b"h", b"1", b"2", b"3"]


def test_a_view_that_knows_some_gets_the_rest() -> None:
    wire = Wire(Origin())
    wire.record(b"0", b"1", b"2")
    wire.publisher.handle({"kind": "ready", "have": 2})
    wire.publisher.flush()
    assert wire.unpacked() == [b"2"]


def test_what_is_no_longer_kept_becomes_a_keyframe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAIL_BYTES", 40)
    wire = Wire(Origin())
    wire.publisher.handle({"kind": "ready", "have": 0})
    for i in range(30):
        wire.record(bytes([i]) * 10)
    wire.origin.kept = 25
    wire.publisher.flush()
    assert wire.data[-1] == {"kind": "keyframe", "seq": 1, "first": 30, "count": 2, "lost": True}
    assert wire.unpacked() == [b"header", b"keyframe"]
    wire.record(b"next")
    wire.publisher.flush()
    assert wire.data[-1]["first"] == 30


def test_the_tail_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAIL_BYTES", 1000)
    wire = Wire(Origin())
    for _ in range(500):
        wire.record(b"x" * 100)
    assert wire.publisher._tail_bytes <= 1000
    assert wire.publisher.last_number == 500


def test_a_keyframe_that_is_asked_for_comes_first() -> None:
    wire = Wire(Origin())
    wire.record(b"0", b"1")
    wire.publisher.handle({"kind": "keyframe"})
    wire.publisher.flush()
    assert (wire.data[0]["kind"], wire.data[0]["lost"]) == ("keyframe", False)


def test_missing_numbers_are_fetched_from_the_source() -> None:
    wire = Wire(Origin())
    wire.record(b"0")
    wire.origin.records.append(b"1")  # one that nobody told the publisher of
    wire.record(b"2")
    wire.publisher.handle({"kind": "ready", "have": 0})
    wire.publisher.flush()
    assert wire.unpacked() == [b"0", b"1", b"2"]


def test_large_backlogs_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    wire = Wire(Origin())
    wire.record(*[b"x" * 400] * 10)
    wire.publisher.handle({"kind": "ready", "have": 0})
    while wire.publisher.flush():
        wire.publisher.handle({"kind": "ack", "seq": wire.data[-1]["seq"]})
    assert [message["count"] for message in wire.data] == [3, 3, 3, 1]


def test_a_fast_engine_never_waits_and_never_floods() -> None:
    origin, sent = Origin(), list[float]()

    def send(message: dict[str, Any], _buffers: list[bytes]) -> None:
        if message["kind"] == "batch":
            sent.append(time.monotonic())
            publisher.handle({"kind": "ack", "seq": message["seq"]})

    publisher = Publisher(send, origin)
    publisher.handle({"kind": "ready", "have": 0})
    slowest, end, number = 0.0, time.monotonic() + 0.5, 0
    while time.monotonic() < end:
        origin.records.append(b"x" * 50)
        before = time.perf_counter()
        publisher.publish(number, origin.records[-1])
        slowest = max(slowest, time.perf_counter() - before)
        number += 1
    publisher.close()
    assert 2 <= len(sent) <= 0.5 * RATE + 3
    assert slowest < 0.2  # a lock held for the length of a list slice, and a busy machine
    assert not any(thread.name == "nbengine-lab" for thread in threading.enumerate())


def test_a_dead_comm_ends_the_publisher_quietly() -> None:
    def send(_message: dict[str, Any], _buffers: list[bytes]) -> None:
        raise RuntimeError("comm closed")

    publisher = Publisher(send, Origin())
    publisher.handle({"kind": "ready", "have": 0})
    assert publisher._thread is not None
    publisher._thread.join(timeout=3)
    assert not publisher._thread.is_alive()
    publisher.publish(0, b"x")
    publisher.close()
