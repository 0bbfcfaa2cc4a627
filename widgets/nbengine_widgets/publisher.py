"""Publisher: carries records to the browser without ever holding up the engine.

Records come in from the engine's thread and are only put on a queue; one thread of the publisher's own sends them, at most
RATE batches a second, and never with more than UNACKNOWLEDGED of them unanswered. What does not fit the tail is dropped: the
browser is then a gap behind, and gets a keyframe.

Messages to the browser (buffers: one, of records each after its length as a little-endian uint32):

    {"kind": "batch", "seq", "first", "count"}           records number first … first + count - 1
    {"kind": "keyframe", "seq", "first", "count", "lost"}  records that stand for all before number `first`
    {"kind": "status", …}                                  LabSource.status()

Messages from the browser: {"kind": "ready", "have": n}, {"kind": "ack", "seq"}, {"kind": "keyframe"}.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Protocol

logger = logging.getLogger(__name__)

RATE = 30.0  # batches a second, at most
UNACKNOWLEDGED = 2  # batches
BATCH_BYTES = 1 << 20  # a batch ends with the record that passes this
TAIL_BYTES = 16 << 20  # records kept here for a browser that is behind

Send = Callable[[dict[str, Any], list[bytes]], None]


class Origin(Protocol):
    """The part of a LabSource that a publisher needs."""

    def keyframe(self) -> tuple[int, list[bytes]]: ...

    def records_since(self, number: int) -> list[bytes] | None: ...

    def status(self) -> dict[str, Any]: ...


class Publisher:
    """first: the number of the next record, as far as is known before the first `publish`."""

    def __init__(self, send: Send, origin: Origin, *, first: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._origin, self._clock = send, origin, clock
        self._changed = threading.Condition(threading.Lock())
        self._tail: deque[bytes] = deque()
        self._tail_first = first  # number of the first record in the tail
        self._tail_bytes = 0
        self._next = first  # number of the next record to send
        self._viewer = False  # a browser has said that it is ready
        self._keyframe_asked = False
        self._seq = 0
        self._acked = 0
        self._sent_at = float("-inf")
        self._status: dict[str, Any] = {}
        self._status_asked = False
        self._closed = False
        self._thread: threading.Thread | None = None

    # -------------------------------------------------------------------------------------------------- the engine's side

    def publish(self, number: int, record: bytes) -> None:
        """Take record `number`. Never waits for the browser."""
        self.publish_many(number, (record,))

    def publish_many(self, number: int, records: Iterable[bytes]) -> None:
        """Take records `number`, number + 1, …; if some are missing before them, the source will be asked for those."""
        with self._changed:
            if number != self.last_number:
                self._tail.clear()
                self._tail_bytes, self._tail_first = 0, number
            for record in records:
                self._tail.append(record)
                self._tail_bytes += len(record)
            while self._tail_bytes > TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft())
                self._tail_first += 1
            self._changed.notify()

    def status_changed(self) -> None:
        """Send the source's status with the next batch, or alone."""
        with self._changed:
            self._status_asked = True
            self._changed.notify()

    # ------------------------------------------------------------------------------------------------- the browser's side

    def handle(self, message: dict[str, Any]) -> bool:
        """A message of the browser; False if it is not for a publisher. May be called from any thread."""
        kind = message.get("kind")
        if kind not in ("ready", "ack", "keyframe"):
            return False
        with self._changed:
            if kind == "ack":
                self._acked = max(self._acked, min(int(message.get("seq", 0)), self._seq))
            else:
                self._acked = self._seq  # what was under way belongs to a view that is gone, or that lost it
                self._viewer, self._status, self._status_asked = True, {}, True
                self._keyframe_asked = kind == "keyframe"
                self._next = 0 if kind == "keyframe" else min(int(message.get("have", 0)), self.last_number)
            self._start()
            self._changed.notify()
        return True

    # ------------------------------------------------------------------------------------------------------- its own side

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="nbengine-lab", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop sending and drop the tail. May be called twice."""
        with self._changed:
            self._closed = True
            self._tail.clear()
            self._tail_bytes = 0
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2)

    @property
    def last_number(self) -> int:
        """The number of the next record that will come in."""
        return self._tail_first + len(self._tail)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._due():
                    self._changed.wait(0.5)
                if self._closed:
                    return
                early = self._sent_at + 1 / RATE - self._clock()
            if early > 0:
                time.sleep(early)
            try:
                self.flush()
            except Exception:  # the comm is closed, or the source is: nobody is left to tell but the log
                if not self._closed:
                    logger.exception("The Lab is no longer sent anything; the engine goes on")
                self.close()
                return

    def _due(self) -> bool:
        if not self._viewer:
            return False
        behind = self._keyframe_asked or self._next < self.last_number
        return self._status_asked or (behind and self._seq - self._acked < UNACKNOWLEDGED)

    def flush(self) -> bool:
        """Send what may be sent now; False if that is nothing."""
        with self._changed:
            if self._closed or not self._due():
                return False
            self._sent_at = self._clock()
            asked, self._status_asked = self._status_asked, False
            may_send = self._seq - self._acked < UNACKNOWLEDGED
            message, records = self._next_batch() if may_send else (None, [])
        if asked or message is not None:
            self._send_status(always=asked)
        if message is not None:
            self._send(message, [pack(records)])
        return True

    def _next_batch(self) -> tuple[dict[str, Any] | None, list[bytes]]:
        """The next message, with the books moved on. Holds the lock; the source answers at once, as it promises."""
        if not self._keyframe_asked and self._next == self.last_number:
            return None, []
        records = None if self._keyframe_asked else self._from_number(self._next)
        if records is None:
            lost = not self._keyframe_asked
            self._keyframe_asked = False
            number, records = self._origin.keyframe()
            self._next = number
            return self._numbered("keyframe", number, records) | {"lost": lost}, records
        first, self._next = self._next, self._next + len(records)
        return self._numbered("batch", first, records), records

    def _numbered(self, kind: str, first: int, records: list[bytes]) -> dict[str, Any]:
        self._seq += 1
        return {"kind": kind, "seq": self._seq, "first": first, "count": len(records)}

    def _from_number(self, number: int) -> list[bytes] | None:
        """About BATCH_BYTES of records from `number` on; None if they are no longer kept anywhere."""
        if number >= self._tail_first:
            return _up_to_size(islice(self._tail, number - self._tail_first, None))
        kept = self._origin.records_since(number)
        return _up_to_size(kept) if kept else None

    def _send_status(self, *, always: bool) -> None:
        status = self._origin.status()
        if always or status != self._status:
            self._status = status
            self._send({"kind": "status", **status}, [])


def _up_to_size(records: Iterable[bytes]) -> list[bytes]:
    taken: list[bytes] = []
    size = 0
    for record in records:
        taken.append(record)
        size += len(record)
        if size >= BATCH_BYTES:
            break
    return taken


def pack(records: Iterable[bytes]) -> bytes:
    """Records back to back, each after its length as a little-endian uint32."""
    return b"".join(struct.pack("<I", len(record)) + record for record in records)
