"""The Lab in a real JupyterLab: clicks move the engine, and what is drawn is what the engine holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator

from tests.ui.cells import ADD, ENGINE, write_notebook
from tests.ui.drawn import click, engine_state, wait_for, wait_until_true_to_life
from tests.ui.lab_server import LabPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Open = Callable[..., LabPage]


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_the_first_notebook_runs_and_its_lab_shows_the_engine(open_notebook: Open, theme: str) -> None:
    page = open_notebook("01_step_by_step.ipynb", theme=theme)
    page.run_all(300)
    lab = page.lab()
    lab.scroll_into_view_if_needed()
    wait_until_true_to_life(page, lab)
    assert page.page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']").count() == 0
    dark = lab.evaluate("e => getComputedStyle(e).backgroundColor.match(/\\d+/g).slice(0, 3).every(c => Number(c) < 60)")
    assert dark == ("Dark" in theme)
    assert page.errors == []


def test_buttons_move_the_engine_phase_by_phase_and_step_by_step(open_notebook: Open, lab_folder: Path) -> None:
    write_notebook(lab_folder / "buttons.ipynb", ENGINE + ADD, "dbg")
    page = open_notebook("buttons.ipynb")
    page.run_all()
    lab = page.lab()
    wait_until_true_to_life(page, lab)
    for phase in ("execute", "update", "schedule"):
        click(lab, "phase")
        wait_for(page, f"str(dbg.core.next_phase) == {phase!r}")
        wait_until_true_to_life(page, lab)
    for step in (2, 3):
        click(lab, "step")
        wait_for(page, f"dbg.core.step_count == {step}")
        wait_until_true_to_life(page, lab)
    lab.locator("text=run until…").click()
    lab.locator("text=a request is preempted").click()
    wait_for(page, "dbg.core.scheduler.num_preemptions > 0 and not dbg.is_busy")
    wait_until_true_to_life(page, lab)
    assert "preempted" in lab.locator(".nbe-chip").inner_text()
    assert owned_blocks_look_unlike_empty_ones(page, lab)
    click(lab, "back")
    wait_for(page, "dbg.core.scheduler.num_preemptions == 0")
    wait_until_true_to_life(page, lab)
    assert page.errors == []


def owned_blocks_look_unlike_empty_ones(page: LabPage, lab: Locator) -> bool:
    """Read the canvas itself: the pixel left of the middle of each block, owned ones against free ones without content."""
    state = engine_state(page)
    colours = lab.locator(".nbe-map canvas").evaluate(
        """canvas => {
          const scale = canvas.width / canvas.clientWidth, context = canvas.getContext("2d");
          return [...canvas.parentElement.querySelectorAll("[role=gridcell]")].map(cell => {
            const x = (cell.offsetLeft + cell.clientWidth * 0.8) * scale;
            const y = (cell.offsetTop + cell.clientHeight * 0.5) * scale;
            return [...context.getImageData(x, y, 1, 1).data].slice(0, 3).join();
          });
        }"""
    )
    owned = {colours[b] for b, owners in state["owners"].items() if owners}
    empty = {colours[b] for b, owners in state["owners"].items() if not owners and b not in state["cached"]}
    return bool(owned) and not owned & empty


def test_looking_back_moves_the_view_and_not_the_engine(open_notebook: Open, lab_folder: Path) -> None:
    write_notebook(lab_folder / "scrub.ipynb", ENGINE + ADD, "dbg.step(8)", "dbg")
    page = open_notebook("scrub.ipynb")
    page.run_all()
    lab = page.lab()
    wait_until_true_to_life(page, lab)
    before = engine_state(page)
    lab.locator("h3").first.click()
    lab.press("ArrowLeft")
    lab.press("ArrowLeft")
    lab.locator("text=/viewing step/").wait_for(timeout=10_000)
    assert engine_state(page) == before
    lab.locator("text=/back to now/i").click()
    wait_until_true_to_life(page, lab)


def test_buttons_work_inside_a_blocking_generate(open_notebook: Open, lab_folder: Path) -> None:
    """Pause, step and continue by click while llm.generate() holds the cell; the text is what it would have been."""
    generate = "text = [o.outputs[0].text for o in llm.generate(prompts[:3], SamplingParams(**sampling), use_tqdm=False)]"
    write_notebook(lab_folder / "blocking.ipynb", ENGINE, "dbg", generate.replace("text =", "undisturbed ="), generate)
    page = open_notebook("blocking.ipynb")
    for index in (0, 1, 2):
        page.run_cell(index)
        page.wait_cell(index)
    lab = page.lab()
    start = page.ask("dbg.core.step_count")
    page.run_cell(3)
    step = lab.locator(".nbe-step")
    page.page.wait_for_function("([e, n]) => Number(e.innerText.slice(5)) > n + 3", arg=[step.element_handle(), start])
    click(lab, "pause")
    lab.locator(".nbe-chip:has-text('paused')").wait_for(timeout=20_000)
    page.page.wait_for_timeout(500)
    here = step.inner_text()
    page.page.wait_for_timeout(1000)
    assert step.inner_text() == here, "the engine went on after the pause"
    click(lab, "step")
    page.page.wait_for_function("([e, old]) => e.innerText !== old", arg=[step.element_handle(), here], timeout=20_000)
    click(lab, "run")
    page.wait_cell(3)
    assert page.ask("text == undisturbed")
    wait_until_true_to_life(page, lab)
    assert page.errors == []
