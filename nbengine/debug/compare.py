"""Two runs side by side: where they first differ, and their totals; and several, a line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

import msgspec

from nbengine.debug.display import illustrated
from nbengine.debug.totals import Totals, number_text, totals
from nbengine.debug.trace import Trace
from nbengine.observe.records import StepRecord
from nbengine.observe.tables import html_table, text_table
from nbengine.observe.view import EngineView


class Difference(msgspec.Struct, frozen=True):
    """The first thing that is not the same in both runs."""

    step: int
    what: str
    here: object
    there: object

    def __str__(self) -> str:
        here, there = _apart(self.here, self.there)
        return f"step {self.step}: {self.what} differ: {_brief(here)} here, {_brief(there)} there"

    __repr__ = __str__


def first_difference(one: Iterable[StepRecord], other: Iterable[StepRecord]) -> Difference | None:
    """Times apart, the first step in which two runs decide, compute or give something else; None if none does."""
    there = {step.step: step for step in other}
    last = -1
    for step in one:
        twin = there.get(step.step)
        if twin is None and step.step > max(there, default=-1):
            return Difference(step.step, "lengths", "goes on", "no such step")
        last = max(last, step.step)
        if twin is None:
            continue
        mine, its = comparable(step), comparable(twin)
        for what, value in mine.items():
            if value != its[what]:
                return Difference(step.step, what, value, its[what])
    more = [number for number in there if number > last]
    return Difference(more[0], "lengths", "no such step", "goes on") if more else None


def comparable(step: StepRecord) -> dict[str, Any]:
    """What a step did, without anything that depends on the clock."""
    plan, run, done = step.scheduled, step.executed, step.updated
    return {
        "batches": dict(zip(plan.request_ids, plan.tokens)) if plan else None,
        "preemptions": plan.preempted if plan else None,
        "decisions": [str(decision) for decision in plan.decisions] if plan else None,
        "block operations": [str(op) for op in plan.block_ops] if plan else None,
        "sampled tokens": run.sampled if run else None,
        "outputs": dict(zip(done.request_ids, done.tokens)) if done else None,
        "endings": [(e.request_id, e.reason, e.stop_reason) for e in done.finished] if done else None,
    }


def _apart(here: object, there: object) -> tuple[object, object]:
    """Of two lists the first place at which they differ, of two dicts all such entries; else both as they are."""
    if isinstance(here, list) and isinstance(there, list):
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, there)))
        return next(iter(here[same:]), None), next(iter(there[same:]), None)
    if isinstance(here, dict) and isinstance(there, dict):
        one, other = ({k: v for k, v in a.items() if k not in b or b[k] != v} for a, b in ((here, there), (there, here)))
        return one or None, other or None  # both None: only their order differs
    return here, there


def _brief(value: object) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name} {number}" for name, number in value.items())
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 120 else text[:117] + "…"


class Comparison:
    """first_difference is None if the runs are the same. here, there: their totals, from the first step
    that both have (first_step)."""

    def __init__(self, here: Trace, there: Trace) -> None:
        self._traces = (here, there)
        self.first_difference = first_difference(here.steps, there.steps)
        self.first_step = max((trace.steps[0].step for trace in self._traces if len(trace.steps)), default=0)
        self.here = totals(here, self.first_step)
        self.there = totals(there, self.first_step)

    def rows(self) -> list[list[object]]:
        """(quantity, here, there), ready for a table."""
        names = Totals.__struct_fields__
        return [[name, number_text(getattr(self.here, name)), number_text(getattr(self.there, name))] for name in names]

    def _title(self) -> str:
        difference = f"first difference: {self.first_difference}" if self.first_difference else "no difference"
        return f"{difference}; totals from step {self.first_step} on"

    def __repr__(self) -> str:
        return f"{self._title()}\n{text_table(_COLUMNS, self.rows(), '  ')}"

    def figure(self) -> Any:
        """Both timelines and both block maps, as they are in the first step that differs (a matplotlib Figure)."""
        from nbengine.debug import plots

        step = self.first_difference.step if self.first_difference is not None else None
        runs = [plots.Run.of(trace.records) for trace in self._traces]
        return plots.side_by_side(runs, [_view_in(trace, step) for trace in self._traces], self.first_step, step)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from nbengine.debug import plots

        table = html_table(self._title(), _COLUMNS, self.rows())
        return illustrated({"text/plain": repr(self), "text/html": table}, plots.png(self.figure()))


def _view_in(trace: Trace, step: int | None) -> EngineView:
    """What the trace shows once `step` is scheduled; its end if it does not get there."""
    try:
        return trace.view if step is None else trace.view_at(step, "execute")
    except LookupError:
        return trace.view


_COLUMNS = ("", "here", "there")


class Scoreboard:
    """Several runs, a line each: the same workload under different policies or limits, say."""

    def __init__(self, runs: Mapping[str, Trace]) -> None:
        self.totals = {name: totals(trace) for name, trace in runs.items()}

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict a run, for a DataFrame."""
        return [{"run": name, **msgspec.structs.asdict(total)} for name, total in self.totals.items()]

    def _table(self) -> tuple[tuple[str, ...], list[list[object]]]:
        names = Totals.__struct_fields__
        lines: list[list[object]] = [
            [name, *(number_text(getattr(total, field)) for field in names)] for name, total in self.totals.items()
        ]
        return ("run", *names), lines

    def __repr__(self) -> str:
        return text_table(*self._table())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html_table("", *self._table())}
