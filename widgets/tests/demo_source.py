"""A LabSource over the pretend engine of demo.py: what a Debugger is to a real one, as small as can be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import demo
from demo_engine import Engine, r

PHASES = ("schedule", "execute", "update")


class DemoSource:
    """Commands are carried out by whoever calls `drain` or `block`: the thread that owns the engine."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or demo.story(0)
        self.commands: list[dict[str, Any]] = []
        self.threads: list[str] = []  # in which each command came
        self.listeners: list[Callable[[int, bytes], None]] = []
        self.state, self.reason = "paused", "paused by hand"
        self.kept_from = 0
        self._told = len(self.engine.records)
        self._came = threading.Condition()

    def capabilities(self) -> list[str]:
        return ["run", "pause", "phase", "step", "run_until", "source"]

    def header(self) -> bytes:
        return self.engine.records[0]

    def num_records(self) -> int:
        return self._told

    def records_since(self, number: int) -> list[bytes] | None:
        return None if number < self.kept_from else self.engine.records[number : self._told]

    def keyframe(self) -> tuple[int, list[bytes]]:
        return self._told, [*self.engine.records[:2], r.encoder.encode(self.engine.keyframe())]

    def subscribe(self, callback: Callable[[int, bytes], None]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def status(self) -> dict[str, Any]:
        return {"state": self.state, "reason": self.reason}

    def post(self, command: dict[str, Any]) -> None:
        with self._came:
            self.commands.append(command)
            self.threads.append(threading.current_thread().name)
            self._came.notify()

    def source_lines(self, file: str, line: int) -> dict[str, Any] | None:
        return {"file": file, "first_line": line - 2, "lines": [f"line {line + i} of {file}" for i in range(-2, 6)]}

    def static_bundle(self) -> dict[str, Any]:
        return {"text/plain": f"step {self.engine.step}", "text/html": f"<b>step {self.engine.step}</b>"}

    # -------------------------------------------------------------------------------------------------- the engine's side

    def phase(self) -> None:
        """Make one phase and tell it."""
        if self.engine.phase == "schedule":
            for ask in demo.STORY:
                if ask.step == self.engine.step and ask.name not in self.engine.requests:
                    self.engine.add(ask)
        getattr(self.engine, self.engine.phase)()
        for number in range(self._told, len(self.engine.records)):
            self._told = number + 1
            for listener in list(self.listeners):
                listener(number, self.engine.records[number])

    def step(self) -> None:
        self.phase()
        while self.engine.phase != "schedule":
            self.phase()

    def block(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Hold this thread as a paused generate() would, and carry out commands as they come."""
        deadline = time.monotonic() + seconds
        done = len(self.commands)
        while time.monotonic() < deadline and not until():
            with self._came:
                self._came.wait(0.05)
                new, done = self.commands[done:], len(self.commands)
            for command in new:
                if command["name"] in ("phase", "step"):
                    getattr(self, command["name"])()
