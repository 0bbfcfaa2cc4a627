"""R097: "Error displaying widget: model not found" after a reload. Each output has text and a table beside the
widget, so that a reader without the widget's state sees the moment."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from tests.reports.kernel import SETUP, cell

pytestmark = pytest.mark.notebook
WIDGET = "application/vnd.jupyter.widget-view+json"


def executed() -> nbformat.NotebookNode:
    cells = [cell(SETUP), cell("dbg.step(3)"), nbformat.v4.new_code_cell("dbg"), nbformat.v4.new_code_cell("dbg.lab.blocks")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return notebook


def test_without_its_state_the_output_still_shows_the_moment() -> None:
    notebook = executed()
    for shown in notebook.cells[2:]:
        (output,) = shown.outputs
        assert WIDGET in output.data and "<img alt=" in output.data["text/html"]
        for mime in ("text/plain", "text/html"):
            assert "step 3, next: schedule" in output.data[mime]
    notebook.metadata.pop("widgets", None)
    for shown in notebook.cells[2:]:
        del shown.outputs[0].data[WIDGET]  # what a reader without widgets is left with
    page, _ = HTMLExporter(mathjax_url="", require_js_url="").from_notebook_node(notebook)
    assert page.count("step 3, next: schedule") >= 2 and "model not found" not in page


def test_on_demand_there_is_no_widget_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBENGINE_STATIC", "1")
    for shown in executed().cells[2:]:
        assert WIDGET not in shown.outputs[0].data and "<table" in shown.outputs[0].data["text/html"]
