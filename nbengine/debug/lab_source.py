"""What a Lab asks of whom it shows (nbengine_widgets.source.LabSource), for a live engine and for a trace."""

from __future__ import annotations

import linecache
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbengine.debug import lab_breakpoints
from nbengine.debug.commands import NAMES
from nbengine.debug.trace import Trace
from nbengine.observe.records import AnyRecord, Executed, Header, Keyframe, Scheduled, Texts, Updated, encoder

if TYPE_CHECKING:
    from nbengine.debug.debugger import Debugger

RecordListener = Callable[[int, bytes], None]
COMMANDS = [*NAMES, "source"]
_SOURCE_LINES = 60
_RATE_WINDOW_S = 2.0


class Stream:
    """Records by number, the newest `limit_bytes` of them; any thread may read. `base`: number of the last keyframe."""

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._lock = threading.Lock()
        self._limit_bytes = limit_bytes
        self._records: deque[bytes] = deque()
        self._first = 0
        self._bytes = 0
        self._header = b""
        self._keyframe: tuple[int, bytes] | None = None
        self._texts: dict[int, str] = {}
        self._listeners: list[RecordListener] = []

    def push(self, record: AnyRecord, data: bytes) -> None:
        """Take the next record and tell those who listen. In the engine's thread."""
        with self._lock:
            number = self._first + len(self._records)
            if isinstance(record, Header):
                self._header = data
            elif isinstance(record, Texts):
                self._texts.update(zip(record.token_ids, record.texts))
            elif isinstance(record, Keyframe):
                self._keyframe = (number, data)
            self._records.append(data)
            self._bytes += len(data)
            while self._bytes > self._limit_bytes and len(self._records) > 1:
                self._bytes -= len(self._records.popleft())
                self._first += 1
            listeners = list(self._listeners)
        for listener in listeners:
            listener(number, data)

    @property
    def header(self) -> bytes:
        return self._header

    def __len__(self) -> int:
        with self._lock:
            return self._first + len(self._records)

    def since(self, number: int) -> list[bytes] | None:
        with self._lock:
            if number < self._first:
                return None
            return list(islice(self._records, number - self._first, None))

    def keyframe(self) -> tuple[int, list[bytes]]:
        """(n, records that stand for all before number n)."""
        with self._lock:
            texts = Texts(token_ids=list(self._texts), texts=list(self._texts.values()))
            told = [self._header, encoder.encode(texts)] if self._texts else [self._header]
            if self._keyframe is None:
                return 1, told
            number, data = self._keyframe
            return number + 1, [*told, data]

    def listen(self, listener: RecordListener) -> Callable[[], None]:
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end


class EngineSource:
    """A LabSource for a Debugger."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self.stream = Stream()
        self.message = ""  # one sentence for the person: a command that was refused, say
        self._tokens: deque[tuple[float, int]] = deque()
        self._moved_at = 0.0
        self._files: set[str] = set()  # that decisions have named

    def push(self, record: AnyRecord, data: bytes) -> None:
        now = time.monotonic()
        self._moved_at = now
        if isinstance(record, Scheduled):
            self._files.update(decision.file for decision in record.decisions if decision.file)
        elif isinstance(record, Updated | Executed):
            made = sum(map(len, record.tokens)) if isinstance(record, Updated) else 0
            self._tokens.append((now, made))
            while self._tokens and self._tokens[0][0] < now - _RATE_WINDOW_S:
                self._tokens.popleft()
        self.stream.push(record, data)

    # ---------------------------------------------------------------------------------------------------------- LabSource

    def capabilities(self) -> list[str]:
        undoable = self._debugger.undo is not None
        return [name for name in COMMANDS if undoable or name not in ("back", "goto")]

    def header(self) -> bytes:
        return self.stream.header

    def num_records(self) -> int:
        return len(self.stream)

    def records_since(self, number: int) -> list[bytes] | None:
        return self.stream.since(number)

    def keyframe(self) -> tuple[int, list[bytes]]:
        return self.stream.keyframe()

    def subscribe(self, callback: RecordListener) -> Callable[[], None]:
        return self.stream.listen(callback)

    def status(self) -> dict[str, Any]:
        debugger = self._debugger
        state, reason = debugger.state()
        return {
            "state": state,
            "reason": reason,
            "tokens_per_s": self._rate(),
            "busy": debugger.is_busy,
            "message": self.message,
            "breakpoints": [lab_breakpoints.told(point) for point in debugger.breakpoints],
        }

    def _rate(self) -> float:
        made = list(self._tokens)
        if len(made) < 2 or time.monotonic() - self._moved_at > _RATE_WINDOW_S:
            return 0.0
        span = made[-1][0] - made[0][0]
        return round(sum(count for _at, count in made[1:]) / span, 1) if span > 0 else 0.0

    def post(self, command: dict[str, Any]) -> None:
        self._debugger.post(command)

    def source_lines(self, file: str, line: int) -> dict[str, Any] | None:
        return source_lines(file, line, self._files)

    def static_bundle(self) -> dict[str, Any]:
        return self._debugger.snapshot_bundle()


class TraceSource:
    """A LabSource that only plays: a saved run."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._data = [encoder.encode(record) for record in trace.records]

    def capabilities(self) -> list[str]:
        return ["source"]

    def header(self) -> bytes:
        return self._data[0]

    def num_records(self) -> int:
        return len(self._data)

    def records_since(self, number: int) -> list[bytes] | None:
        return self._data[number:]

    def keyframe(self) -> tuple[int, list[bytes]]:
        return 1, self._data[:1]

    def subscribe(self, callback: RecordListener) -> Callable[[], None]:
        return lambda: None

    def status(self) -> dict[str, Any]:
        return {"state": "closed", "reason": "a saved trace" + (f": {self._trace.problem}" if self._trace.problem else "")}

    def post(self, command: dict[str, Any]) -> None:
        """A recording does not move."""

    def source_lines(self, file: str, line: int) -> dict[str, Any] | None:
        return source_lines(file, line, set())

    def static_bundle(self) -> dict[str, Any]:
        return self._trace.static_bundle()


def source_lines(file: str, line: int, known: set[str]) -> dict[str, Any] | None:
    """The lines around a decision's line; only of the stock scheduler ("") and of files that a decision has named."""
    if file and file not in known:
        return None
    lines = linecache.getlines(file or _stock_scheduler())
    if not 1 <= line <= len(lines):
        return None
    first = max(1, line - _SOURCE_LINES // 2)
    shown: Iterable[str] = lines[first - 1 : first - 1 + _SOURCE_LINES]
    return {
        "file": file or "nbengine/scheduler/scheduler.py",
        "first_line": first,
        "lines": [text.rstrip("\n") for text in shown],
    }


def _stock_scheduler() -> str:
    """Where the stock scheduler's source lies; found without importing it."""
    return str(Path(__file__).parents[1] / "scheduler" / "scheduler.py")
