"""Breakpoints: where the engine is to stop, and why it did."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from nbengine.kv_cache.ops import Op
from nbengine.observe.events import EVENT_NAMES, Event, events_of
from nbengine.observe.records import Aborted, AnyRecord, Executed, Failed, Header, Keyframe, Scheduled, Texts, Updated
from nbengine.observe.state import is_of
from nbengine.observe.tables import counted, html_table, text_table
from nbengine.observe.view import EngineView

Predicate = Callable[[EngineView], object]
_CHANGES_HANDS = (Op.ALLOCATE, Op.HIT, Op.DEREF, Op.FREE_FRONT, Op.FREE_BACK)
_BREAK_NAMES = (*EVENT_NAMES, "step_slower_than")


class Breakpoint(msgspec.Struct, kw_only=True):
    """Stops the engine when all that is given here holds; what is None does not matter.

    event: a name from events.EVENT_NAMES, or "step_slower_than" with seconds. request_id: of the event, or any event of
    that request. step, phase: where the engine then stands (phase "schedule" if only a step is given). block_id: the block
    changes hands. when: a predicate over the view; stops each time that it becomes true.
    count: stop at the count-th time only, and each time after. condition: must be true besides. once: disable after a hit.
    """

    number: int
    event: str | None = None
    request_id: str | None = None
    step: int | None = None
    phase: str | None = None
    block_id: int | None = None
    seconds: float | None = None
    when: Predicate | None = None
    condition: Predicate | None = None
    count: int = 1
    once: bool = False
    enabled: bool = True
    label: str = ""
    seen_in: list[int] = []  # the steps in which it held, up to `count` of them
    hits: int = 0  # times that it stopped the engine
    error: str | None = None  # what its predicate raised; it is disabled then
    was_true: bool = False

    def __post_init__(self) -> None:
        if self.event is not None and self.event not in _BREAK_NAMES:
            raise ValueError(f"There is no event {self.event!r}. Events: {', '.join(_BREAK_NAMES)}.")
        if (self.event == "step_slower_than") != (self.seconds is not None):
            raise ValueError('event "step_slower_than" and seconds=… go together.')
        self._check_types()
        if self.phase not in (None, "schedule", "execute", "update"):
            raise ValueError(f"phase must be schedule, execute or update, got {self.phase!r}.")
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}.")
        if not any(given is not None for given in self._criteria()):
            raise ValueError("A breakpoint needs an event, a request, a step, a phase, a block or a predicate.")

    def _check_types(self) -> None:
        wanted: list[tuple[str, object, type | tuple[type, ...]]] = [
            ("request", self.request_id, str),
            ("step", self.step, int),
            ("block", self.block_id, int),
            ("seconds", self.seconds, (int, float)),
            ("count", self.count, int),
        ]
        for name, value, kind in wanted:
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise TypeError(f"{name} cannot be {value!r}: {'text' if kind is str else 'a number'} is wanted.")
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{name} must not be negative, got {value}.")
        for name, predicate in (("condition", self.condition), ("when", self.when)):
            if predicate is not None and not callable(predicate):
                raise TypeError(f"{name} must be a function of the view, got {predicate!r}.")

    def rewound(self, step: int, view: EngineView) -> None:
        """The engine is back before `step`, as `view` shows: what comes now is to be seen as it was the first time."""
        self.seen_in = [seen for seen in self.seen_in if seen < step]
        if self.when is not None and self.enabled:
            try:
                self.was_true = bool(self.when(view))
            except Exception:  # it will be asked again, and says then what is wrong
                self.was_true = False

    def _criteria(self) -> tuple[object, ...]:
        return self.event, self.request_id, self.step, self.phase, self.block_id, self.when

    def describe(self) -> str:
        """What it waits for, in words."""
        parts = []
        if self.event is not None:
            parts.append(self.event.replace("_", " ") + (f" {self.seconds:g} s" if self.seconds is not None else ""))
        parts += [f"block {self.block_id} changes hands"] if self.block_id is not None else []
        parts += [f"request {self.request_id}"] if self.request_id is not None else []
        parts += [f"step {self.step}"] if self.step is not None else []
        parts += [f"before {self.phase}"] if self.phase is not None else []
        parts += [f"when {self.label or source_of(self.when)}"] if self.when is not None else []
        parts += [f"if {source_of(self.condition)}"] if self.condition is not None else []
        parts += [f"from time {self.count} on"] if self.count > 1 else []
        parts += ["once"] if self.once else []
        return ", ".join(parts)

    def __repr__(self) -> str:
        facts = ["on" if self.enabled else "off", counted(self.hits, "hit"), *([self.error] if self.error else [])]
        return f"breakpoint {self.number} ({', '.join(facts)}): {self.describe()}"

    def holds(self, record: AnyRecord, events: list[Event], view: EngineView) -> str | None:
        """Why it holds after `record`, None if it does not. Raises what a predicate raises."""
        if (self.step is not None or self.phase is not None) and not self._stands(view):
            return None
        why = [f"step {view.step}, before {view.phase}"] if self.step is not None or self.phase is not None else []
        if self.block_id is not None:
            ops = [op for op in getattr(record, "block_ops", ()) if op.block_id == self.block_id and op.op in _CHANGES_HANDS]
            if not ops:
                return None
            why.append(f"block {self.block_id}: " + ", ".join(f"{op.op.name.lower()} {op.request_id}" for op in ops))
        if self.event is not None or self.request_id is not None:
            found = list(self._matching(record, events, view))
            if not found:
                return None
            why += found
        if self.when is not None:
            true = bool(self.when(view))
            became, self.was_true = true and not self.was_true, true
            if not became:
                return None
            why.append(self.label or source_of(self.when))
        if self.condition is not None and not self.condition(view):
            return None
        return "; ".join(why)

    def _stands(self, view: EngineView) -> bool:
        return view.phase == (self.phase or "schedule") and self.step in (None, view.step)

    def _matching(self, record: AnyRecord, events: list[Event], view: EngineView) -> Iterator[str]:
        if self.event == "step_slower_than":
            took = step_seconds(view)
            if isinstance(record, Updated) and self.seconds is not None and took > self.seconds:
                yield f"step {record.step} took {took * 1e3:.1f} ms, more than {self.seconds * 1e3:g} ms"
            return
        for event in events:
            about = self.request_id is None or is_of(event.request_id or "", self.request_id)
            if about and self.event in (None, event.name):
                yield str(event)


class Hit(msgspec.Struct, frozen=True):
    """A breakpoint stopped the engine: which one, where, and why."""

    number: int
    step: int
    phase: str
    why: str

    def __str__(self) -> str:
        return f"breakpoint {self.number}: {self.why}" if self.number else self.why

    def __repr__(self) -> str:
        return f"stopped at step {self.step}, before {self.phase}: {self}"


class Breakpoints:
    """The breakpoints of one engine, by number. Iterate, index, remove, disable. num_blocks: of its pool, if known."""

    def __init__(self, num_blocks: int | None = None) -> None:
        self._num_blocks = num_blocks
        self._all: dict[int, Breakpoint] = {}
        self._next = 1

    def add(self, **criteria: Any) -> Breakpoint:
        """Raises TypeError and ValueError for criteria that are none, and adds nothing then."""
        unknown = ", ".join(name for name in criteria if name not in _GIVEN)
        if unknown:
            raise TypeError(f"A breakpoint has no {unknown}; it has: {', '.join(_GIVEN).replace('_id', '')}.")
        point = self._fitting(Breakpoint(number=self._next, **criteria))
        self._all[point.number] = point
        self._next += 1
        return point

    def edit(self, number: int, **criteria: Any) -> Breakpoint:
        """Change some of a breakpoint's criteria; its number stays. Raises ValueError, and changes nothing, for bad ones."""
        point = msgspec.structs.replace(self._known(number), seen_in=[], was_true=False, error=None, **criteria)
        self._all[number] = self._fitting(point)
        return point

    def _fitting(self, point: Breakpoint) -> Breakpoint:
        if point.block_id is not None and self._num_blocks is not None and point.block_id >= self._num_blocks:
            raise ValueError(f"There is no block {point.block_id}: the last one is {self._num_blocks - 1}.")
        return point

    def rewound(self, step: int, view: EngineView) -> None:
        for point in self._all.values():
            point.rewound(step, view)

    def remove(self, number: int) -> None:
        self._known(number)
        del self._all[number]

    def clear(self) -> None:
        self._all.clear()

    def enable(self, number: int, enabled: bool = True) -> None:
        point = self._known(number)
        point.enabled, point.error = enabled, None

    def disable(self, number: int) -> None:
        self.enable(number, False)

    def _known(self, number: int) -> Breakpoint:
        if number not in self._all:
            raise KeyError(f"There is no breakpoint {number}; there are: {', '.join(map(str, self._all)) or 'none'}.")
        return self._all[number]

    def check(self, record: AnyRecord, view: EngineView) -> list[Hit]:
        """What the breakpoints say to `record`, which `view` has taken in already."""
        if not self._all or isinstance(record, Header | Texts | Keyframe):
            return []
        events = events_of(record)
        return [hit for point in list(self._all.values()) if point.enabled and (hit := _ask(point, record, events, view))]

    def __getitem__(self, number: int) -> Breakpoint:
        return self._known(number)

    def __iter__(self) -> Iterator[Breakpoint]:
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def _rows(self) -> list[list[object]]:
        return [[p.number, p.describe(), "on" if p.enabled else "off", p.hits, p.error or ""] for p in self]

    def __repr__(self) -> str:
        return text_table(_COLUMNS, self._rows()) or "no breakpoints"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html_table("breakpoints", _COLUMNS, self._rows())}


_GIVEN = ("event", "request_id", "step", "phase", "block_id", "seconds", "when", "condition", "count", "once", "label")
_COLUMNS = ("#", "stops", "is", "hits", "error")


def _ask(point: Breakpoint, record: AnyRecord, events: list[Event], view: EngineView) -> Hit | None:
    if not _concerns(point, record):
        return None
    try:
        why = point.holds(record, events, view)
    except Exception as error:  # a person's predicate must not break the engine: stop, say so, and do not ask it again
        point.error, point.enabled = f"{type(error).__name__}: {error}", False
        return Hit(point.number, view.step, view.phase, f"its predicate raised {point.error}; the breakpoint is off now")
    if why is None:
        return None
    if len(point.seen_in) < point.count:
        point.seen_in.append(view.step)
    if len(point.seen_in) < point.count:
        return None
    point.hits += 1
    point.enabled = not point.once
    return Hit(point.number, view.step, view.phase, why)


def _concerns(point: Breakpoint, record: AnyRecord) -> bool:
    """Inputs come from the person who set the breakpoint: they stop nothing unless they are what it names. A stop string
    is none: the front found it."""
    if isinstance(record, Scheduled | Executed | Updated | Failed):
        return not (isinstance(record, Executed) and point.request_id is not None and point.event is None)
    if isinstance(record, Aborted) and record.reason == "stop" and point.event == "finished":
        return True
    return point.event in ("added", "aborted", "changed") or point.block_id is not None


def step_seconds(view: EngineView) -> float:
    """How long the phases of the step under way, or last done, have taken."""
    scheduled = view.scheduled.schedule_s if view.scheduled else 0.0
    executed = view.executed.execute_s if view.executed else 0.0
    return scheduled + executed + (view.updated.update_s if view.updated else 0.0)


def source_of(predicate: Predicate | None) -> str:
    """The predicate's source line if it can be found, else its name."""
    code = getattr(predicate, "__code__", None)
    if code is None:
        return repr(predicate)
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    if code.co_name == "<lambda>" and "lambda" in line:
        return _lambda_text(line[line.index("lambda") :])
    return str(code.co_name)


def _lambda_text(text: str) -> str:
    """The lambda at the start of `text`, without the call that it stands in."""
    depth = 0
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0 or (depth == 0 and char == "," and ":" in text[:place]):
            return text[:place]
    return text
