"""The gate: who may move the engine, and when.

The core calls `at(phase)` before each phase, in the engine's own thread. That call carries out the commands that other
threads have posted, and then returns, or waits while the gate is paused. All else here may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from nbengine.observe.observer import Phase

Command = Callable[[], Any]
_LOOK_UP_S = 0.25


class Gate:
    """Implements observer.Gatekeeper.

    before: called with the phase each time that the engine is about to move, in the engine's thread.
    on_wait: called with the phase and the reason when `at` begins to wait, in the engine's thread. It may raise, which
    ends the wait as an Interrupt does.
    on_left: called when a call of step() is over, by its end or by an exception, in the engine's thread.
    on_change: called when the right to move changed or a command came, in the thread that did it.
    """

    def __init__(
        self,
        *,
        before: Command | None = None,
        on_wait: Callable[[Phase, str], None] | None = None,
        on_left: Callable[[], None] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.before = before
        self.on_wait = on_wait
        self.on_left = on_left
        self.on_change = on_change
        self.reason = ""
        self.has_waiter = False  # a thread stands in `at`, waiting for the right to move
        self.held_by = 0  # the thread that last paused it, or granted moves
        self._changed = threading.Condition()
        self._commands: deque[tuple[Command, Future[Any]]] = deque()
        self._paused = False
        self._phases_left = 0  # moves that are granted while paused
        self._steps_left = 0
        self._mid_step = False  # of the granted steps, one is under way

    # -------------------------------------------------------------------------------------------------- the engine's side

    def at(self, phase: Phase) -> None:
        """Return when the engine may make `phase`. KeyboardInterrupt ends the wait; the gate stays as it was."""
        told = False
        while True:
            self.drain()
            with self._changed:
                if self._commands:
                    continue
                if self._may_move(phase):
                    break
                if told or self.on_wait is None:
                    self._wait()
                    continue
            told = True
            self.on_wait(phase, self.reason)
        if self.before is not None:
            self.before()

    def left(self) -> None:
        if self.on_left is not None:
            self.on_left()

    def drain(self) -> int:
        """Carry out the commands that were posted; returns how many. Only in the thread that moves the engine.

        A command that raises hands the exception to whoever posted it, and the engine goes on.
        """
        done = 0
        while True:
            with self._changed:
                if not self._commands:
                    return done
                command, future = self._commands.popleft()
            done += 1
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = command()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def take(self, phase: Phase) -> bool:
        """Whether the engine may make `phase` now; uses up a granted move. For drivers that must not wait."""
        with self._changed:
            return self._may_move(phase)

    def _may_move(self, phase: Phase) -> bool:
        if not self._paused:
            return True
        if self._phases_left:
            self._phases_left -= 1
            return True
        if not self._steps_left:
            return False
        if phase is Phase.SCHEDULE and self._mid_step:
            self._steps_left -= 1
            self._mid_step = False
            if not self._steps_left:
                return False
        self._mid_step = True
        return True

    def _wait(self) -> None:
        """Wait for a change; look up now and then, as not every way to interrupt a thread wakes it from a lock."""
        self.has_waiter = True
        try:
            self._changed.wait(_LOOK_UP_S)
        finally:
            self.has_waiter = False

    # ------------------------------------------------------------------------------------------------------ anyone's side

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def granted(self) -> bool:
        """Whether moves are granted while paused that have not been made yet."""
        return bool(self._phases_left or self._steps_left)

    def pause(self, reason: str = "paused by hand") -> None:
        """Stop at the next phase boundary. Moves that were granted and not made yet are taken back."""
        with self._changed:
            self._paused, self.reason, self.held_by = True, reason, threading.get_ident()
            self._phases_left = self._steps_left = 0
            self._mid_step = False
        self._tell()

    def resume(self) -> None:
        with self._changed:
            self._paused, self.reason = False, ""
            self._phases_left = self._steps_left = 0
            self._mid_step = False
            self._changed.notify_all()
        self._tell()

    def grant(self, *, phases: int = 0, steps: int = 0) -> None:
        """Let the engine make this many moves and then stand still: phases, or steps (to the end of the step)."""
        with self._changed:
            if not self._paused:
                self.reason = "paused by hand"
            self._paused, self.held_by = True, threading.get_ident()
            self._phases_left += phases
            self._steps_left += steps
            self._changed.notify_all()
        self._tell()

    def submit(self, command: Command) -> Future[Any]:
        """Have `command` carried out at the next phase boundary, in the engine's thread."""
        future: Future[Any] = Future()
        with self._changed:
            self._commands.append((command, future))
            self._changed.notify_all()
        self._tell()
        return future

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()
