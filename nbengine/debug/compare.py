"""Two runs side by side: where they first differ, and their totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import msgspec

from nbengine.debug.trace import Trace
from nbengine.observe.records import Aborted, Changed, StepRecord
from nbengine.observe.tables import html_table, text_table
from nbengine.scheduler.decision import Verdict


class Totals(msgspec.Struct, kw_only=True):
    """A run in numbers. Seconds; None where nothing was measured."""

    steps: int
    requests: int
    finished: int
    preemptions: int
    tokens_recomputed: int  # computed, lost in a preemption, and not found in the prefix cache on the way back
    output_tokens: int
    prefix_hit_rate: float | None
    mean_ttft_s: float | None
    mean_itl_s: float | None
    seconds: float
    tokens_per_s: float | None


def totals(trace: Trace, first_step: int = 0) -> Totals:
    """The totals of a recorded run, from `first_step` on. TTFT and ITL are of all its requests."""
    view = trace.view
    steps = [step for step in trace.steps if step.step >= first_step]
    made = sum(len(tokens) for step in steps if step.updated for tokens in step.updated.tokens)
    busy = sum(_seconds(step) for step in steps)
    prefix = [step.updated.prefix for step in steps if step.updated and step.updated.prefix]
    queries, hits = sum(p[1] for p in prefix), sum(p[2] for p in prefix)
    ended = sum(len(step.updated.finished) for step in steps if step.updated)
    by_hand = [change for step in steps for change in step.inputs]
    return Totals(
        steps=sum(step.updated is not None for step in steps),
        requests=len({name for step in steps if step.scheduled for name in step.scheduled.request_ids}),
        finished=ended + sum(isinstance(change, Aborted) for change in by_hand),
        preemptions=sum(len(step.scheduled.preempted) for step in steps if step.scheduled)
        + sum(len(change.values.get("preempted", ())) for change in by_hand if isinstance(change, Changed)),
        tokens_recomputed=_recomputed(steps),
        output_tokens=made,
        prefix_hit_rate=hits / queries if queries else None,
        mean_ttft_s=_mean(request.time_to_first_token for request in view.requests.values()),
        mean_itl_s=_mean(request.inter_token_latency for request in view.requests.values()),
        seconds=busy,
        tokens_per_s=made / busy if busy else None,
    )


def _seconds(step: StepRecord) -> float:
    parts = (step.scheduled and step.scheduled.schedule_s, step.executed and step.executed.execute_s)
    return sum(part or 0.0 for part in parts) + (step.updated.update_s if step.updated else 0.0)


def _recomputed(steps: Iterable[StepRecord]) -> int:
    """Tokens lost by preemptions, less what each victim found in the prefix cache when it came back."""
    lost: dict[str, int] = {}
    total = 0
    for step in steps:
        for decision in step.scheduled.decisions if step.scheduled else ():
            if decision.verdict in (Verdict.PREEMPTED, Verdict.SELF_PREEMPTED):
                lost[decision.request_id] = decision.numbers.get("computed", 0)
            elif decision.verdict is Verdict.RESUMED:
                total += max(0, lost.pop(decision.request_id, 0) - decision.numbers.get("hit", 0))
    return total


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


class Difference(msgspec.Struct, frozen=True):
    """The first thing that is not the same in both runs."""

    step: int
    what: str
    here: object
    there: object

    def __str__(self) -> str:
        return f"step {self.step}: {self.what} differ: {_brief(self.here)} and {_brief(self.there)}"


def first_difference(one: Iterable[StepRecord], other: Iterable[StepRecord]) -> Difference | None:
    """Times apart, the first step in which two runs decide, compute or give something else; None if none does."""
    there = {step.step: step for step in other}
    last = -1
    for step in one:
        last = max(last, step.step)
        twin = there.get(step.step)
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
        "decisions": [(d.request_id, str(d.verdict), d.numbers, d.cause) for d in plan.decisions] if plan else None,
        "block operations": [msgspec.to_builtins(op) for op in plan.block_ops] if plan else None,
        "sampled tokens": run.sampled if run else None,
        "outputs": dict(zip(done.request_ids, done.tokens)) if done else None,
        "endings": [(e.request_id, e.reason, e.stop_reason) for e in done.finished] if done else None,
    }


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "…"


class Comparison:
    """first_difference is None if the runs are the same as far as both go. here, there: their totals, from the first step
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
        return [[name, _number(getattr(self.here, name)), _number(getattr(self.there, name))] for name in names]

    def _title(self) -> str:
        difference = f"first difference: {self.first_difference}" if self.first_difference else "no difference"
        return f"{difference}; totals from step {self.first_step} on"

    def __repr__(self) -> str:
        return f"{self._title()}\n{text_table(_COLUMNS, self.rows(), '  ')}"

    def figure(self) -> Any:
        """Both timelines and both block maps, side by side (a matplotlib Figure)."""
        from matplotlib.figure import Figure

        from nbengine.debug import plots

        figure = Figure(figsize=(12, 7), layout="constrained", facecolor=plots.PAPER)
        grid = figure.subplots(3, 2)
        for column, trace in enumerate(self._traces):
            run = plots.Run.of(trace.records)
            plots.timeline(run, grid[0][column])
            plots.tokens(run, grid[1][column])
            plots.kv_map(run.view, grid[2][column])
            for row in (0, 1):
                grid[row][column].set_xlim(left=self.first_step - 0.5)
            if self.first_difference is not None:
                for row in (0, 1):
                    grid[row][column].axvline(self.first_difference.step, color=plots.BAD, linewidth=0.8, linestyle=":")
        return figure

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from nbengine.debug import plots

        table = html_table(self._title(), _COLUMNS, self.rows())
        return {"text/plain": repr(self), "text/html": table, "image/png": plots.png(self.figure())}


_COLUMNS = ("", "here", "there")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


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
            [name, *(_number(getattr(total, field)) for field in names)] for name, total in self.totals.items()
        ]
        return ("run", *names), lines

    def __repr__(self) -> str:
        return text_table(*self._table())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html_table("", *self._table())}
