"""The life of a Lab in a real JupyterLab: saved, shown twice, run again, closed, interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.ui.cells import ADD, ENGINE, write_notebook
from tests.ui.drawn import click, wait_for, wait_until_true_to_life
from tests.ui.lab_server import LabPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Open = Callable[..., LabPage]
WIDGET = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"


def saved(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def size(value: object) -> int:
    return len(json.dumps(value).encode())


def test_a_saved_lab_adds_less_than_two_kilobytes_to_its_bundle(open_notebook: Open, lab_folder: Path) -> None:
    """With widget state saving on. Beside the state there is the picture that readers without a kernel see."""
    path = lab_folder / "saved.ipynb"
    write_notebook(path, ENGINE + ADD, "dbg.run()", "dbg")
    page = open_notebook("saved.ipynb")
    page.run_all()
    wait_until_true_to_life(page, page.lab())
    for _ in range(6):
        click(page.lab(), "back")
    page.page.wait_for_timeout(500)
    page.save()
    notebook = saved(path)
    models = notebook.metadata.widgets[STATE]["state"]
    bundle = sum(size(m["state"].get(name, "")) for m in models.values() for name in ("_esm", "_css"))
    (output,) = notebook.cells[-1].outputs
    picture = {mime: data for mime, data in output.data.items() if mime != WIDGET}
    assert "<img alt=" in picture["text/html"]
    growth = size(notebook.metadata.widgets) + size(output) - size(picture) - bundle
    assert 50_000 < bundle < 95_000
    assert growth < 2000, f"{growth} bytes beyond the bundle"


COUNT_OBSERVERS = """
window.live = 0;
for (const name of ["ResizeObserver", "MutationObserver"]) {
  const Original = window[name];
  window[name] = class extends Original {
    constructor(callback) {
      super(callback);
      this.ours = /blob:/.test(new Error().stack);
    }
    observe(...args) {
      if (this.ours && !this.on) window.live++, (this.on = true);
      return super.observe(...args);
    }
    disconnect() {
      if (this.on) window.live--, (this.on = false);
      return super.disconnect();
    }
  };
}
"""


def test_two_views_and_a_cell_run_again_stay_in_step_and_closing_leaks_nothing(
    open_notebook: Open, lab_folder: Path
) -> None:
    write_notebook(lab_folder / "views.ipynb", ENGINE + ADD + "dbg.step(4)", "dbg", "dbg", "dbg.lab.blocks")
    page = open_notebook("views.ipynb", script=COUNT_OBSERVERS)
    page.run_all()
    page.page.locator(".nbe-lab").nth(2).wait_for()
    click(page.lab(0), "step")
    wait_for(page, "dbg.core.step_count == 5")
    for view in (0, 1):
        wait_until_true_to_life(page, page.lab(view))
    page.lab(0).locator("[data-request=r1]").first.click()
    page.lab(1).locator("[data-request=r1][aria-pressed=true]").first.wait_for()
    observers = page.page.evaluate("live")
    assert observers > 0
    for _ in range(3):
        page.run_cell(1)
        page.wait_idle()
        page.lab(0).locator(".nbe-step").wait_for()
        wait_until_true_to_life(page, page.lab(0))
    assert page.page.locator(".nbe-lab").count() == 3
    assert page.page.evaluate("live") == observers
    click(page.lab(0), "step")
    wait_for(page, "dbg.core.step_count == 6")
    wait_until_true_to_life(page, page.lab(1))
    page.command("notebook:clear-all-cell-outputs")
    page.page.wait_for_function("!document.querySelector('.nbe-lab')")
    assert page.page.evaluate("live") == 0
    page.run_cell(1)
    wait_until_true_to_life(page, page.lab(0))
    assert page.errors == []


def test_a_kernel_that_is_shut_down_leaves_a_recording_that_plays(open_notebook: Open, lab_folder: Path) -> None:
    write_notebook(lab_folder / "shut_down.ipynb", ENGINE + ADD, "dbg.step(4)", "dbg")
    page = open_notebook("shut_down.ipynb")
    page.run_all()
    lab = page.lab()
    wait_until_true_to_life(page, lab)
    page.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    lab.locator(".nbe-banner-warn:has-text('kernel gone: this is the saved trace')").wait_for(timeout=10_000)
    click(lab, "back")
    lab.locator(".nbe-step:has-text('step 2')").wait_for(timeout=5_000)
    assert page.errors == []


def test_interrupt_ends_the_wait_of_a_paused_generate(open_notebook: Open, lab_folder: Path) -> None:
    """The stop button while the engine stands at the gate: the cell ends, the books add up, and the work can go on."""
    generate = "done = [o.outputs[0].text for o in llm.generate(prompts[:3], SamplingParams(**sampling), use_tqdm=False)]"
    write_notebook(lab_folder / "interrupt.ipynb", ENGINE, "dbg", generate, generate, "rest = llm.wait_for_completion()")
    page = open_notebook("interrupt.ipynb")
    for index in (0, 1, 2):
        page.run_cell(index)
        page.wait_cell(index)
    lab = page.lab()
    undisturbed, start = page.ask("done"), page.ask("dbg.core.step_count")
    page.run_cell(3)
    step = lab.locator(".nbe-step")
    page.page.wait_for_function("([e, n]) => Number(e.innerText.slice(5)) > n + 3", arg=[step.element_handle(), start])
    click(lab, "pause")
    lab.locator(".nbe-chip:has-text('paused')").wait_for(timeout=20_000)
    page.page.locator("[data-command='notebook:interrupt-kernel']").first.click()
    page.page.locator(".jp-Cell:nth-child(n) .jp-OutputArea-output:has-text('KeyboardInterrupt')").wait_for(timeout=20_000)
    page.wait_idle()
    assert page.ask("(dbg.core.check_invariants(), len(dbg.view.running))") == (None, 3)
    wait_until_true_to_life(page, lab)
    click(lab, "step")
    wait_until_true_to_life(page, lab)
    click(lab, "run")
    wait_for(page, "not dbg.view.running")
    page.run_cell(4)
    page.wait_cell(4)
    assert page.ask("[output.outputs[0].text for output in rest]") == undisturbed
    assert page.errors == []
