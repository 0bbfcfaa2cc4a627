"""Keep Ctrl-C (the notebook's Interrupt) from tearing a phase in two.

Books are kept in `schedule` and `update`: an interrupt that arrives there waits until they are done. The model's forward
pass, and a wait at the gate, may be cut short at any point, because the step can be run again from there.

Python handles signals in the main thread alone, so in any other thread both blocks do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Deferring:
    """A SIGINT handler that remembers the signal while closed and passes it on while open."""

    def __init__(self, passed_on: Any) -> None:
        self.passed_on = passed_on  # a function, SIG_DFL or SIG_IGN
        self.is_open = False
        self.pending = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.is_open and callable(self.passed_on):
            self.passed_on(signum, frame)
        else:
            self.pending = True

    def deliver(self) -> None:
        """Pass on what arrived while closed. To be called when open, or when no longer installed."""
        if self.pending and callable(self.passed_on):
            self.pending = False
            self.passed_on(signal.SIGINT, None)


def _installed() -> Any:
    """The SIGINT handler, None where none can be set: outside the main thread, or one that is not Python's."""
    return signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None


@contextmanager
def deferred() -> Iterator[None]:
    """Hold interrupts back until the block is done; a block inside such a block adds nothing."""
    before = _installed()
    if before is None or (isinstance(before, _Deferring) and not before.is_open):
        yield
        return
    handler = _Deferring(before)
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if handler.pending and not callable(before):
            signal.raise_signal(signal.SIGINT)  # SIG_DFL or SIG_IGN: the system's own way
        handler.deliver()


@contextmanager
def allowed() -> Iterator[None]:
    """Inside `deferred`, let interrupts through again (first the one that may have arrived meanwhile)."""
    handler = _installed()
    if not isinstance(handler, _Deferring) or handler.is_open:
        yield
        return
    try:
        handler.is_open = True
        handler.deliver()
        yield
    finally:
        handler.is_open = False
