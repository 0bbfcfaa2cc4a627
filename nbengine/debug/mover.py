"""Mover: moves an engine phase by phase, from a cell, from a task on the kernel's loop, or on command from any thread."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nbengine.engine import interrupts
from nbengine.engine.core import EngineCore
from nbengine.engine.llm_engine import LLMEngine
from nbengine.errors import PhaseError, StepError
from nbengine.observe.breakpoints import Hit
from nbengine.observe.events import EVENT_NAMES, events_of
from nbengine.observe.gate import Gate
from nbengine.observe.observer import Phase
from nbengine.observe.records import AnyRecord
from nbengine.observe.tables import counted
from nbengine.observe.view import EngineView
from nbengine.outputs import RequestOutput

logger = logging.getLogger(__name__)

Until = Callable[[EngineView], object] | str | int | None
LONG_PHASE_S = 0.03  # a phase that lasts longer would hold up the loop that draws the Lab


class Mover:
    """One move at a time. stopped: why the last run ended. on_output: told of what the front made of a step.

    view: gives the live view. last: the record that was made last.
    """

    def __init__(self, engine: LLMEngine, core: EngineCore, gate: Gate, view: Callable[[], EngineView]) -> None:
        self.engine = engine
        self.core = core
        self.gate = gate
        self.view = view
        self.stopped: Hit | None = None
        self.on_output: Callable[[list[RequestOutput]], None] | None = None
        self.error: BaseException | None = None  # what ended a step of the background task
        self.closed = ""  # why it moves nothing any more
        self.loop = _running_loop()
        self._moving = threading.Lock()
        self._home = threading.get_ident()
        self._hits: list[Hit] = []
        self._records: list[AnyRecord] = []  # of the move under way
        self._driving = False  # a run, arun or play is on
        self._due: Hit | None = None  # a stop that a change by hand asked for
        self._execute_s = math.inf  # how long the last execute took
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Event | None = None
        gate.on_change = self._changed

    # ------------------------------------------------------------------------------------------------------- what it hears

    def noted(self, record: AnyRecord, hits: list[Hit]) -> None:
        """A record was made, and these breakpoints want to stop there. In the engine's thread."""
        if self.is_moving:
            self._records.append(record)
            self._hits += hits
        elif hits:  # somebody else moves the engine: llm.generate, say. It will wait at the gate
            self.stopped = hits[0]
            self.gate.pause(str(hits[0]))

    # -------------------------------------------------------------------------------------------------------------- moves

    def forget_stop(self) -> None:
        """The engine was put back: why it stopped is no more."""
        self.stopped = self._due = None

    @contextmanager
    def exclusively(self, *, by_hand: bool = True) -> Iterator[None]:
        """Hold the right to move. Raises PhaseError at once if somebody else is moving, or if it was detached.

        by_hand: for a change, not for a phase. A breakpoint that it hits ("added", say) stops the next run where it starts.
        """
        if self.closed:
            raise PhaseError(self.closed)
        if not self._moving.acquire(blocking=False):
            raise PhaseError("The engine is stepping: pause it first (dbg.pause()), or wait for the move to end.")
        self._hits, self._records = [], []
        if not by_hand:
            self._due = None  # it has gone on since
        try:
            yield
            if by_hand and self._hits:
                self.stopped = self._due = self._hits[0]
        finally:
            self._moving.release()

    def phase(self, phase: Phase) -> Any:
        """Make this phase. Raises PhaseError, and changes nothing, if another one is next."""
        with self.exclusively(by_hand=False), _notes_told():
            self.gate.drain()
            return self._make(phase)

    def _make(self, phase: Phase) -> Any:
        core = self.core
        if phase is Phase.SCHEDULE:
            if core.next_phase is phase and self.gate.before is not None:
                self.gate.before()
            return core.schedule()
        if phase is Phase.EXECUTE:
            return core.execute()
        with interrupts.deferred():
            outputs = core.update()
            self._hand_over(self.engine.process_outputs(outputs))
            return outputs

    def _hand_over(self, made: list[RequestOutput]) -> None:
        if self.on_output is not None and made:
            self.on_output(made)

    def run(self, until: Until = None, *, max_steps: int | None = None, idle: bool = False) -> Hit:
        """Move until `until` holds, a breakpoint is hit, somebody pauses, or there is nothing left to do.

        idle: make empty steps too. Returns where and why it stopped. Interrupt ends it at a phase boundary.
        """
        goal = _goal(until)
        first = self.core.step_count
        with self._drive():
            while (stop := self._may_go_on(until, first, max_steps, idle)) is None:
                self.phase(self.core.next_phase)
                if (stop := self._reached(goal)) is not None:
                    break
        self.stopped = stop
        return stop

    async def arun(self, until: Until = None, *, max_steps: int | None = None) -> Hit:
        """`run`, but the kernel's loop gets its turn after every phase, and long phases run in a thread."""
        goal = _goal(until)
        first = self.core.step_count
        with self._drive():
            while (stop := self._may_go_on(until, first, max_steps, False)) is None:
                await self._aphase()
                if (stop := self._reached(goal)) is not None:
                    break
                await asyncio.sleep(0)
        self.stopped = stop
        return stop

    async def _aphase(self) -> None:
        phase = self.core.next_phase
        if phase is not Phase.EXECUTE:
            self.phase(phase)
            return
        started = time.perf_counter()  # not the engine's time, which may be a simulation's
        if self._execute_s < LONG_PHASE_S:
            self.phase(phase)
        else:
            with self.exclusively(by_hand=False), _notes_told():
                self.gate.drain()
                if self.core.next_phase is phase:
                    await asyncio.to_thread(self.core.execute)
        self._execute_s = time.perf_counter() - started

    @contextmanager
    def _drive(self) -> Iterator[None]:
        if self.closed:
            raise PhaseError(self.closed)
        if self._driving:
            raise PhaseError("The engine is running already: pause it first (dbg.pause()), or stop the task of dbg.play().")
        self._driving = True
        failed, self.error = self.error, None
        reason = self.gate.reason if self.gate.paused and self.is_playing and failed is None else ""
        self.gate.resume()
        try:
            yield
        finally:
            self._driving = False
            if reason and not self.gate.paused:
                self.gate.pause(reason)  # the task in the background was paused: a step by hand does not let it loose

    def _may_go_on(self, until: Until, first: int, max_steps: int | None, idle: bool) -> Hit | None:
        self.gate.drain()
        if self._due is not None:
            due, self._due = self._due, None
            return due
        if isinstance(until, int) and self.core.step_count >= until:
            if self.core.step_count == until and self.core.next_phase is Phase.SCHEDULE:
                return self._here(f"step {until} is next")
            return self._here(f"the engine is past step {until}: goto({until}) goes back")
        if self.gate.paused:
            return self._here(self.gate.reason)
        if not idle and not self.core.has_unfinished_requests():
            return self._here("nothing left to do")
        if max_steps is not None and self.core.next_phase is Phase.SCHEDULE and self.core.step_count >= first + max_steps:
            return self._here(f"{counted(max_steps, 'step')} done")
        return None

    def _reached(self, goal: Callable[[EngineView, list[AnyRecord]], str | None]) -> Hit | None:
        if self._hits:
            return self._hits[0]
        why = goal(self.view(), self._records)
        return self._here(why) if why else None

    def _here(self, why: str) -> Hit:
        return Hit(0, self.core.step_count, str(self.core.next_phase), why)

    # ------------------------------------------------------------------------------------------------ in the background

    def play(self) -> asyncio.Task[None]:
        """Step in a task on the kernel's loop until it is stopped: while paused, or with nothing to do, it waits.

        Raises PhaseError outside a running loop.
        """
        if self.closed:
            raise PhaseError(self.closed)
        loop = _running_loop()
        if loop is None:
            raise PhaseError("play() needs a running event loop, as in a notebook; in a script use run().")
        self.loop = loop
        self.gate.resume()
        if self._task is None or self._task.done():
            self._wake = asyncio.Event()
            self._task = loop.create_task(self._play(self._wake), name="nbengine play")
        return self._task

    def stop_playing(self) -> None:
        """End the background task."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._task = None

    def go_on(self) -> None:
        """Let it run, from any thread: whoever waits at the gate, the task, or, if there is neither, a new task."""
        self.gate.resume()
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._play_if_idle)

    def _play_if_idle(self) -> None:
        if not self._driving and not self.gate.paused and self.core.has_unfinished_requests():
            self.play()

    @property
    def is_moving(self) -> bool:
        """Whether a phase is under way that this mover makes."""
        return self._moving.locked()

    @property
    def is_driving(self) -> bool:
        """Whether a run or arun is on."""
        return self._driving

    @property
    def is_playing(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _play(self, wake: asyncio.Event) -> None:
        while True:
            wake.clear()
            if not self._driving and not self.is_moving:
                self.gate.drain()
                if self.core.has_unfinished_requests() and self.gate.take(self.core.next_phase):
                    await self._play_phase()
                    await asyncio.sleep(0)
                    continue
            await self._wait_for(wake)

    async def _play_phase(self) -> None:
        try:
            await self._aphase()
        except Exception as error:
            self.error = error
            self.gate.pause(f"failed: {type(error).__name__}: {str(error).splitlines()[0]}")
            logger.exception("A step failed; the engine stands before that phase")
            return
        if self._hits:
            self.stopped = self._hits[0]
            self.gate.pause(str(self._hits[0]))

    async def _wait_for(self, wake: asyncio.Event) -> None:
        """Until something changes at the gate; requests that come by llm.generate are noticed a moment later."""
        try:
            await asyncio.wait_for(wake.wait(), timeout=0.2)
        except TimeoutError:
            return

    # -------------------------------------------------------------------------------------------------------- on command

    def _changed(self) -> None:
        """The gate changed, in any thread: see to it that somebody acts on it."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._pump)
        elif threading.get_ident() == self._home and not self.is_moving and not self.gate.has_waiter:
            self._pump()

    def _pump(self) -> None:
        """On the loop (or at home, without one): what was asked for, if nobody else is there to do it."""
        if self._wake is not None:
            self._wake.set()
        if self._driving or self.is_moving or self.is_playing:
            return
        self.gate.drain()
        while self.gate.granted and self.core.has_unfinished_requests() and self.gate.take(self.core.next_phase):
            try:
                self.phase(self.core.next_phase)
            except Exception as error:
                self.error = error
                self.gate.pause(f"failed: {type(error).__name__}: {str(error).splitlines()[0]}")
                logger.exception("A step failed; the engine stands before that phase")
                return
            if self._hits:
                self.stopped = self._hits[0]
                self.gate.pause(str(self._hits[0]))


@contextmanager
def _notes_told() -> Iterator[None]:
    """A failed step's message ends with what was noted on its cause: where the last steps were saved."""
    try:
        yield
    except StepError as error:
        notes = getattr(error.__cause__, "__notes__", [])
        error.args = ("\n".join([str(error), *notes]),)
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _goal(until: Until) -> Callable[[EngineView, list[AnyRecord]], str | None]:
    """`until` as a question that answers why it is reached, or None."""
    if until is None:
        return lambda view, records: None
    if isinstance(until, str):
        if until not in EVENT_NAMES:
            raise ValueError(f"There is no event {until!r}. Events: {', '.join(EVENT_NAMES)}.")
        return lambda view, records: next((str(e) for r in records for e in events_of(r) if e.name == until), None)
    if isinstance(until, int) and not isinstance(until, bool):
        return lambda view, records: None  # looked at before each phase
    if not callable(until):
        raise TypeError(f"until is a predicate over the view, the name of an event or the number of a step, got {until!r}.")
    predicate = until
    return lambda view, records: "until(view) holds" if predicate(view) else None
