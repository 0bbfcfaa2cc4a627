"""R103: in some hosts each update of a display adds an output. The plain fallback has one, and updates it by its id."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tests.reports.kernel import SETUP, cell

pytestmark = pytest.mark.notebook


def test_fifty_steps_leave_one_output_that_shows_the_last_of_them() -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[
            cell(SETUP),
            cell("view = dbg.watch()"),
            cell("for _ in range(50): dbg.step()"),
            cell("view.close(); view.close()"),
        ]
    )
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert [len(cell.outputs) for cell in notebook.cells] == [0, 1, 0, 0]
    (output,) = notebook.cells[1].outputs
    assert "step 50, next: schedule" in output.data["text/plain"]
    assert "step 50, next: schedule" in output.data["text/html"] and "<table" in output.data["text/html"]


def test_it_follows_the_engine_by_itself() -> None:
    """Not only when it is closed: within the period after the last step, and in bounded numbers."""
    notebook = nbformat.v4.new_notebook(
        cells=[
            cell(SETUP),
            cell("view = dbg.watch(); handle, sent = view._handle.update, []"),
            cell("view._handle.update = lambda *a, **k: (sent.append(1), handle(*a, **k))"),
            cell("dbg.step(40); import time; time.sleep(1.5); print(1 <= len(sent) < 20)"),
        ]
    )
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert "step 40, next" in notebook.cells[1].outputs[0].data["text/plain"]
    assert [output.text for output in notebook.cells[3].outputs] == ["True\n"]
