"""Still pictures of a run, with matplotlib: the timeline, the queues, the KV blocks, the requests' lanes.

Each function draws on an Axes that it is given, or on a new Figure; none touches pyplot, so nothing pops up. Colours are
the Lab's (light theme). A request has the same colour in all of them, and its name beside it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from nbengine.observe.log import group_steps
from nbengine.observe.records import AnyRecord, Header, Scheduled, StepRecord, Updated
from nbengine.observe.view import EngineView

INK, SOFT, LINE, PAPER = "#1b1c1f", "#5b5e66", "#dcdde1", "#ffffff"
PHASES = {"schedule": "#7a6bd1", "prepare": "#9a9fae", "forward": "#3b6fd8", "sample": "#2f9e9e", "update": "#d08a2e"}
REQUESTS = ("#3b6fd8", "#c8532a", "#2f7d4f", "#a87b00", "#7d4fb3", "#1b8299", "#b8386f", "#66741f")
MOST_STEPS = 300  # more bars than that are no picture any more
PREFILL, DECODE, BAD = "#3b6fd8", "#2f7d4f", "#c0312b"
LEAST_STEPS = 8  # a picture is as wide as so many, at least


@dataclass
class Run:
    """What the figures need of a run, folded once: a column a quantity, a row a step."""

    view: EngineView
    steps: list[StepRecord] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    states: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # request -> (step, what it did)

    @classmethod
    def of(cls, records: Iterable[AnyRecord], most: int = MOST_STEPS) -> Run:
        """Fold a run; the last `most` steps of it are drawn."""
        kept = list(records)
        header = kept[0]
        assert isinstance(header, Header)
        run = cls(EngineView(header))
        for record in kept[1:]:
            run.view.apply(record)
            if isinstance(record, Scheduled):
                run._note(record)
            elif isinstance(record, Updated):
                run.running.append(len(run.view.running))
                run.waiting.append(len(run.view.waiting))
                run.used.append(run.view.used_blocks)
        run.steps = [step for step in group_steps(iter(kept)) if step.updated is not None][-most:]
        run.running, run.waiting, run.used = run.running[-most:], run.waiting[-most:], run.used[-most:]
        first = run.steps[0].step if run.steps else 0
        recent = {name: [moment for moment in moments if moment[0] >= first] for name, moments in run.states.items()}
        run.states = {name: moments for name, moments in recent.items() if moments}
        return run

    def _note(self, record: Scheduled) -> None:
        verdicts = {d.request_id: str(d.verdict) for d in record.decisions}
        for request_id in record.request_ids:
            kind = "decode" if verdicts.get(request_id, "decode") == "decode" else "prefill"
            self.states.setdefault(request_id, []).append((record.step, kind))
        for request_id in self.view.waiting:
            request = self.view.requests.get(request_id)
            preempted = request is not None and request.status == "preempted"
            self.states.setdefault(request_id, []).append((record.step, "preempted" if preempted else "waiting"))


def colours_of(*views: EngineView) -> dict[str, str]:
    """A colour for each request, by its place among all that the views know: the same in every picture of them."""
    names = dict.fromkeys(name for view in views for name in view.requests)
    return {name: REQUESTS[place % len(REQUESTS)] for place, name in enumerate(names)}


def timeline(records: Iterable[AnyRecord] | Run, ax: Axes | None = None) -> Figure:
    """A bar a step: how long each phase took, in milliseconds."""
    run, ax = _run(records), _axes(ax, (8, 2.6))
    numbers = [step.step for step in run.steps]
    bottom = [0.0] * len(numbers)
    for name, colour in PHASES.items():
        values = [float(step.facts()[f"{name}_ms"] or 0.0) for step in run.steps]
        ax.bar(numbers, values, bottom=bottom, color=colour, width=0.85, label=name)
        bottom = [low + high for low, high in zip(bottom, values)]
    ax.set_ylim(0, 1.05 * max([1e-3, *bottom]))
    _steps_from_to(ax, numbers)
    _finish(ax, "step", "ms", "phases of each step")
    _legend(ax)
    return _figure(ax)


def tokens(records: Iterable[AnyRecord] | Run, ax: Axes | None = None) -> Figure:
    """A bar a step: prefill and decode tokens under the budget; ▼ preemptions, ● finished requests."""
    run, ax = _run(records), _axes(ax, (8, 2.2))
    facts = [step.facts() for step in run.steps]
    numbers = [fact["step"] for fact in facts]
    decode = [fact["decode_tokens"] for fact in facts]
    prefill = [fact["prefill_tokens"] for fact in facts]
    ax.bar(numbers, decode, color=DECODE, width=0.85, label="decode")
    ax.bar(
        numbers,
        prefill,
        bottom=decode,
        color=PREFILL,
        width=0.85,
        hatch="///",
        edgecolor=PAPER,
        linewidth=0,
        label="prefill",
    )
    budget = run.view.limits.token_budget
    tops = [low + high for low, high in zip(decode, prefill)]
    if max(tops, default=0) >= budget:
        ax.axhline(budget, color=INK, linewidth=0.8, linestyle="--", label=f"budget {budget}")
    for marker, name, colour in (("v", "preempted", BAD), ("o", "finished", INK)):
        at = [(fact["step"], top) for fact, top in zip(facts, tops) if fact[name]]
        if at:
            ax.plot([x for x, _ in at], [y for _, y in at], marker, color=colour, markersize=4, linestyle="", label=name)
    ax.set_ylim(0, 1.12 * max([1, *tops]))
    _whole_numbers(ax.yaxis)
    _steps_from_to(ax, numbers)
    _finish(ax, "step", "tokens", "tokens of each step")
    _legend(ax)
    return _figure(ax)


def queues(records: Iterable[AnyRecord] | Run, ax: Axes | None = None) -> Figure:
    """How many requests run and wait, and how many blocks are held, after each step."""
    run, ax = _run(records), _axes(ax, (8, 2.2))
    numbers = [step.step for step in run.steps]
    ax.step(numbers, run.running, where="mid", color=DECODE, label="running")
    ax.step(numbers, run.waiting, where="mid", color=BAD, linestyle="--", label="waiting")
    _finish(ax, "step", "requests", "queues and KV blocks")
    blocks: Any = ax.twinx()
    blocks.fill_between(numbers, run.used, step="mid", color=PREFILL, alpha=0.15, label="blocks held")
    blocks.set_ylim(0, max(1, len(run.view.owners) - 1))
    blocks.set_ylabel("blocks held", fontsize=8, color=SOFT)
    blocks.tick_params(labelsize=7, colors=SOFT)
    blocks.spines[:].set_visible(False)
    _whole_numbers(ax.yaxis, blocks.yaxis)
    _legend(ax, [*ax.get_legend_handles_labels()[0], *blocks.get_legend_handles_labels()[0]])
    return _figure(ax)


def kv_map(
    view: EngineView, ax: Axes | None = None, columns: int | None = None, colours: dict[str, str] | None = None
) -> Figure:
    """A cell a block: full and labelled = held (ring = shared by so many), a dot = free but still cached, empty = free."""
    count, colours = len(view.owners), colours or colours_of(view)
    columns = columns or _columns(count)
    rows = -(-count // columns)
    ax = _axes(ax, (8, 0.5 + min(5.0, 8 / columns * rows)))
    labelled = count <= 256
    for block in view.blocks:
        x, y = block.block_id % columns, block.block_id // columns
        face, edge, width = PAPER, LINE, 0.6 if labelled else 0.2
        if block.state in ("used", "shared"):
            face = colours.get(block.owners[0], SOFT)
        if block.state == "shared":
            edge, width = INK, 2.0 if labelled else 0.6
        ax.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, facecolor=face, edgecolor=edge, linewidth=width))
        if block.state == "cached":
            ax.plot(x + 0.5, y + 0.5, "o", color=SOFT, markersize=3 if labelled else 1)
        if block.state == "null":
            ax.plot([x + 0.1, x + 0.9], [y + 0.1, y + 0.9], color=LINE, linewidth=1)
        elif labelled:
            ink = PAPER if block.ref_count else SOFT
            text = str(block.block_id)
            if block.ref_count:
                text = block.owners[0] if block.ref_count == 1 else f"×{block.ref_count}"
            ax.text(
                x + 0.5, y + 0.8 if not block.ref_count else y + 0.5, text, ha="center", va="center", fontsize=6, color=ink
            )
    ax.set_xlim(0, columns)
    ax.set_ylim(rows, 0)
    ax.set_aspect("equal")
    ax.axis("off")
    free = f"{view.free_blocks} of {count - 1} blocks free"
    ax.set_title(f"KV blocks at step {view.step}, before {view.phase}: {free}", fontsize=9, color=INK, loc="left")
    return _figure(ax)


def _columns(num_blocks: int) -> int:
    """So many that the map is eight times as wide as high."""
    return max(8, math.isqrt(num_blocks * 8))


def gantt(records: Iterable[AnyRecord] | Run, ax: Axes | None = None, most: int = 40) -> Figure:
    """A lane a request: waiting (thin), prefill (hatched), decode (full), preempted (red outline)."""
    run = _run(records)
    colours = colours_of(run.view)
    names = list(run.states)[-most:]
    ax = _axes(ax, (8, 0.8 + 0.22 * len(names)))
    for row, name in enumerate(names):
        colour = colours.get(name, SOFT)
        for kind, first, last in _stretches(run.states[name]):
            style: dict[str, Any] = {"facecolor": colour, "edgecolor": colour, "linewidth": 0.5}
            height = 0.7
            if kind == "waiting":
                style, height = {"facecolor": LINE, "edgecolor": LINE}, 0.2
            elif kind == "preempted":
                style, height = {"facecolor": PAPER, "edgecolor": BAD, "linewidth": 1.0}, 0.4
            elif kind == "prefill":
                style |= {"hatch": "////", "facecolor": PAPER}
            ax.add_patch(Rectangle((first - 0.5, row - height / 2), last - first + 1, height, **style))
    _steps_from_to(ax, [step for name in names for step, _kind in run.states[name]])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    _finish(ax, "step", "", "requests")
    key = [
        Patch(facecolor=LINE, label="waiting"),
        Patch(facecolor=PAPER, edgecolor=SOFT, hatch="////", label="prefill"),
        Patch(facecolor=SOFT, label="decode"),
        Patch(facecolor=PAPER, edgecolor=BAD, label="preempted"),
    ]
    _legend(ax, key)
    return _figure(ax)


def _stretches(states: list[tuple[int, str]]) -> list[tuple[str, int, int]]:
    """Steps in a row in which a request did the same: (what, first, last)."""
    found: list[tuple[str, int, int]] = []
    for step, kind in states:
        if found and found[-1][0] == kind and found[-1][2] >= step - 1:
            found[-1] = (kind, found[-1][1], step)
        else:
            found.append((kind, step, step))
    return found


def overview(records: Iterable[AnyRecord]) -> Figure:
    """All of it on one page: phases, tokens, lanes, blocks."""
    run = _run(records)
    lanes = min(40, max(2, len(run.states)))
    figure = Figure(figsize=(9, 5.2 + 0.16 * lanes), layout="constrained", facecolor=PAPER)
    rows = figure.subplots(4, 1, height_ratios=[2, 1.7, 0.5 + 0.17 * lanes, 2.2])
    timeline(run, rows[0])
    tokens(run, rows[1])
    gantt(run, rows[2])
    kv_map(run.view, rows[3])
    return figure


def side_by_side(runs: Sequence[Run], views: Sequence[EngineView], first_step: int, mark: int | None = None) -> Figure:
    """Phases, tokens and blocks of two runs on the same scales, from `first_step` on. views: whose blocks to show.
    mark: the step in which they first differ."""
    figure = Figure(figsize=(12, 7), layout="constrained", facecolor=PAPER)
    grid = figure.subplots(3, 2, sharey="row", gridspec_kw={"height_ratios": [2, 2, 1.6]})
    colours = colours_of(*(run.view for run in runs), *views)
    last = max([first_step, *(step.step for run in runs for step in run.steps)])
    most = max(len(view.owners) for view in views)
    columns = _columns(most)
    for column, (name, run) in enumerate(zip(("here", "there"), runs)):
        shown = Run(run.view, [step for step in run.steps if step.step >= first_step])
        phases, batches, blocks = (row[column] for row in grid)
        timeline(shown, phases)
        phases.set_title(f"{name}: {phases.get_title(loc='left')}", fontsize=9, color=INK, loc="left")
        tokens(shown, batches)
        kv_map(views[column], blocks, columns, colours)
        for ax in (phases, batches):
            _steps_from_to(ax, [first_step, last])
            if mark is not None:
                ax.axvline(mark, color=BAD, linewidth=0.8, linestyle=":")
    for row in grid[:2]:
        row[0].set_ylim(0, 1.12 * max(ax.dataLim.y1 for ax in row))
    grid[2][0].set_ylim(-(-most // columns), 0)
    return figure


def overview_png(records: Iterable[AnyRecord]) -> bytes:
    return png(overview(records))


def view_png(view: EngineView) -> dict[str, Any]:
    """For EngineView.painter: the blocks of a view, as a part of its MIME bundle."""
    return {"image/png": png(kv_map(view))}


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _run(records: Iterable[AnyRecord] | Run) -> Run:
    return records if isinstance(records, Run) else Run.of(records)


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    return Figure(figsize=size, layout="constrained", facecolor=PAPER).subplots()


def _figure(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def _legend(ax: Axes, handles: Sequence[Artist] | None = None) -> None:
    """The key stands above the axes, where nothing is drawn but the title at the other end."""
    options: dict[str, Any] = {
        "ncols": 6,
        "fontsize": 7,
        "frameon": False,
        "loc": "lower right",
        "bbox_to_anchor": (1, 0.98),
        "handlelength": 1.4,
        "handletextpad": 0.5,
        "columnspacing": 1.1,
        "borderaxespad": 0.0,
    }
    ax.legend(**options) if handles is None else ax.legend(handles=handles, **options)


def _finish(ax: Axes, x: str, y: str, title: str) -> None:
    ax.set_xlabel(x, fontsize=8, color=SOFT)
    ax.set_ylabel(y, fontsize=8, color=SOFT)
    ax.set_title(title, fontsize=9, color=INK, loc="left")
    ax.tick_params(labelsize=7, colors=SOFT)
    _whole_numbers(ax.xaxis)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(LINE)


def _whole_numbers(*axes: Axis) -> None:
    """Steps, tokens, requests and blocks have no halves."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def _steps_from_to(ax: Axes, steps: Sequence[int]) -> None:
    """Nothing but these steps: so pictures of one run, one above the other, are in line. A few steps stay narrow."""
    if steps:
        ax.set_xlim(min(steps) - 0.5, max(max(steps), min(steps) + LEAST_STEPS - 1) + 0.5)
