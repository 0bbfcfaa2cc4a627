"""The still pictures: drawn from records alone, without pyplot, and one for every state of an engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
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
    colours = [plots.colour_of(dbg.view, name) for name in dbg.view.requests]
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
