"""The engine's time: the wall's, or one that only the engine's work moves."""

from __future__ import annotations

import time


class Clock:
    """Seconds from an arbitrary moment: only differences mean something."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self.now()))

    def set_back(self, moment: float) -> None:
        """The engine was rewound to this moment. The wall's clock goes on all the same."""


class VirtualClock(Clock):
    """Stands still until someone moves it, so that the same work always takes the same time."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def wait_until(self, moment: float) -> None:
        self._now = max(self._now, moment)

    def set_back(self, moment: float) -> None:
        self._now = moment
