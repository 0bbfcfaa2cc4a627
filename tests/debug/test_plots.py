"""The still pictures: drawn from records alone, without pyplot, and one for every state of an engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nbengine.debug import plots
from nbengine.debug.debugger import Debugger
from tests.observe.engines import make_llm


@pytest.fixture(scope="module")
def dbg() -> Debugger:
    dbg = make_llm(num_blocks=14, max_model_len=48, max_num_batched_tokens=12).debug()
    for i in range(6):
        dbg.add("abcdefgh" + str(i) * (3 + i), max_tokens=14, temperature=0, ignore_eos=True)
    dbg.run(until=20)
    return dbg


@pytest.mark.parametrize("draw", [plots.timeline, plots.tokens, plots.queues, plots.gantt, plots.overview])
def test_each_figure(draw: Callable[..., Figure], dbg: Debugger) -> None:
    assert plots.png(draw(dbg.trace.records)).startswith(b"\x89PNG")
    fresh = make_llm().debug()
    assert plots.png(draw(fresh.trace.records)).startswith(b"\x89PNG")


def test_the_blocks(dbg: Debugger) -> None:
    figure = plots.kv_map(dbg.view)
    (ax,) = figure.axes
    assert len(ax.patches) == 14
    words = {text.get_text() for text in ax.texts}
    owners = {block.owners[0] for block in dbg.view.blocks if block.ref_count == 1}
    assert owners <= words and "blocks free" in ax.get_title(loc="left")


def test_a_request_has_one_colour_everywhere(dbg: Debugger) -> None:
    colours = list(plots.colours_of(dbg.view).values())
    assert len(set(colours)) == 6
    painted: set[Any] = {tuple(patch.get_facecolor()) for patch in plots.gantt(dbg.trace.records).axes[0].patches}
    from matplotlib.colors import to_rgba

    assert {to_rgba(colour) for colour in colours[:2]} <= painted


def test_lanes_say_what_a_request_did(dbg: Debugger) -> None:
    states = plots.Run.of(dbg.trace.records).states
    kinds = {kind for moments in states.values() for _step, kind in moments}
    assert kinds == {"waiting", "prefill", "decode", "preempted"}


def test_no_window_pops_up(dbg: Debugger) -> None:
    plots.overview_png(dbg.trace.records)
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def overlapping(figure: Figure) -> list[str]:
    """Titles that a legend covers."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    found = []
    for ax in figure.axes:
        title, legend = ax._left_title, ax.get_legend()  # type: ignore[attr-defined]
        if legend is not None and title.get_window_extent(renderer).overlaps(legend.get_window_extent(renderer)):
            found.append(title.get_text())
    return found


def test_titles_and_keys_stand_apart_and_steps_are_whole_numbers(dbg: Debugger) -> None:
    short = make_llm().debug()
    short.add("hello", max_tokens=3)
    short.run()
    for draw in (plots.timeline, plots.tokens, plots.queues, plots.gantt, plots.overview):
        for records in (dbg.trace.records, short.trace.records):
            figure = draw(records)
            FigureCanvasAgg(figure)
            assert overlapping(figure) == []
            assert all(float(tick).is_integer() for ax in figure.axes for tick in ax.get_xticks())


def test_two_runs_are_drawn_on_the_same_scales_with_the_blocks_where_they_part() -> None:
    here = make_llm(num_blocks=20).debug()
    for i in range(4):
        here.add("abcdefgh" + str(i) * 6, max_tokens=8, temperature=0, ignore_eos=True)
    here.step(2)
    there = here.fork(max_num_seqs=1, num_gpu_blocks_override=30)
    for engine in (here, there):
        engine.add("later", max_tokens=3, temperature=0, ignore_eos=True)
        engine.run()
    comparison = here.compare(there)
    figure = comparison.figure()
    FigureCanvasAgg(figure)
    assert overlapping(figure) == []
    rows = [figure.axes[first : first + 2] for first in (0, 2, 4)]
    for one, other in rows:
        assert one.get_ylim() == other.get_ylim() and one.get_xlim() == other.get_xlim()
    step = comparison.first_difference.step
    titles = [ax.get_title(loc="left") for ax in rows[2]]
    assert all(title.startswith(f"KV blocks at step {step}, before execute: ") for title in titles)
    words = [{text.get_text() for text in ax.texts} for ax in rows[2]]
    assert "r5" in words[0] - words[1] and {"r1", "r4"} <= words[0] & words[1]
