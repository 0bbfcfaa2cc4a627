"""The one slot through which anything sees inside an EngineCore, and the gate that owns the right to move.

With neither attached the engine pays one `is None` test a phase.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

from nbengine.config import EngineConfig
from nbengine.executor.base import Executor
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreOutputs, EngineCoreRequest


class Phase(StrEnum):
    """The three moves of a step, in order."""

    SCHEDULE = "schedule"
    EXECUTE = "execute"
    UPDATE = "update"


class Observer(Protocol):
    """Told of everything that an EngineCore does, after it is done, in the engine's own thread.

    It may read the engine and must not change it. If it raises, the core detaches it, warns once and goes on.
    """

    def on_added(self, request: EngineCoreRequest) -> None: ...

    def on_aborted(self, request_ids: list[str], reason: str) -> None: ...

    def on_changed(self, what: str, values: dict[str, Any], request_id: str | None = None) -> None: ...

    def on_scheduled(self, plan: SchedulerOutput, seconds: float) -> None: ...

    def on_executed(self, result: ModelRunnerOutput, seconds: float) -> None: ...

    def on_updated(self, outputs: EngineCoreOutputs, seconds: float) -> None: ...

    def on_failed(self, phase: Phase, error: BaseException) -> None: ...


class Watched(Protocol):
    """What an observer may read of an EngineCore. scheduler: the stock one, or a person's own."""

    config: EngineConfig
    executor: Executor
    scheduler: Any
    observer: Observer | None
    gate: Gatekeeper | None
    next_phase: Phase
    step_count: int
    in_step: bool
    plan: SchedulerOutput | None
    result: ModelRunnerOutput | None


class Gatekeeper(Protocol):
    """Called by EngineCore.step() before each phase, in the engine's thread: returns when the engine may move.

    May carry out commands meanwhile; an Interrupt ends the wait with KeyboardInterrupt, at the phase boundary.
    """

    def at(self, phase: Phase) -> None: ...

    def left(self) -> None:
        """step() is over, by its end or by an exception."""
