"""Breakpoints as the Lab sends and lists them: plain data, no Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import msgspec

from nbengine.observe.breakpoints import Breakpoint
from nbengine.observe.view import EngineView

_SIGNS = {"<": operator.lt, ">": operator.gt}
_MEASURES: dict[str, Callable[[EngineView], int]] = {
    "free_blocks": lambda view: view.free_blocks,
    "waiting": lambda view: len(view.waiting),
    "running": lambda view: len(view.running),
    "step": lambda view: view.step,
}
_FIELDS = {"event", "request", "step", "phase", "block", "seconds", "condition", "count", "once"}
_NAMES = {"request": "request_id", "block": "block_id"}


class Threshold(msgspec.Struct, frozen=True):
    """A predicate over the view that can be sent: "free_blocks" < 4. measure: free_blocks, waiting, running or step."""

    measure: str
    sign: str
    value: float

    def __post_init__(self) -> None:
        if self.measure not in _MEASURES or self.sign not in _SIGNS:
            raise ValueError(f"A condition compares {', '.join(_MEASURES)} by < or >, got {self.measure} {self.sign}.")

    def __call__(self, view: EngineView) -> bool:
        return bool(_SIGNS[self.sign](_MEASURES[self.measure](view), self.value))

    def __repr__(self) -> str:
        return f"{self.measure.replace('_', ' ')} {self.sign} {self.value:g}"


def criteria(args: dict[str, Any]) -> dict[str, Any]:
    """What Breakpoints.add and .edit take, of a "break" command's arguments. Raises ValueError for what is none."""
    unknown = ", ".join(name for name in args if name not in _FIELDS)
    if unknown:
        raise ValueError(f"A breakpoint has no {unknown}; it has: {', '.join(sorted(_FIELDS))}.")
    given = {_NAMES.get(name, name): value for name, value in args.items()}
    if given.get("condition") is not None:
        given["condition"] = Threshold(*given["condition"])
    return given


def told(point: Breakpoint) -> dict[str, Any]:
    """A breakpoint for the Lab's list. "condition" is there if the Lab can edit it: predicates in Python are not sent."""
    seen = {
        "number": point.number,
        "text": point.describe(),
        "enabled": point.enabled,
        "hits": point.hits,
        "error": point.error,
        "event": point.event,
        "request": point.request_id,
        "step": point.step,
        "phase": point.phase,
        "block": point.block_id,
        "seconds": point.seconds,
        "count": point.count,
        "once": point.once,
    }
    condition = point.condition
    if isinstance(condition, Threshold):
        seen["condition"] = [condition.measure, condition.sign, condition.value]
    return {name: value for name, value in seen.items() if value is not None}
