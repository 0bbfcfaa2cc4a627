"""One fixture that runs a notebook of the course as a person would: top to bottom, in a kernel of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

FOLDER = Path(__file__).parents[2] / "notebooks"
CELL_TIMEOUT_S = 180


def load(name: str) -> Any:
    """The notebook as it is stored."""
    read: Any = nbformat.read
    return read(FOLDER / f"{name}.ipynb", as_version=4)


class Lesson:
    """A notebook that has run. seconds: how long that took, kernel start and model load included."""

    def __init__(self, notebook: nbformat.NotebookNode, seconds: float) -> None:
        self.cells = notebook.cells
        self.seconds = seconds

    @property
    def text(self) -> str:
        """All that every cell put out, as plain text."""
        return "\n".join(output_text(cell) for cell in self.cells if cell.cell_type == "code")

    @property
    def prose(self) -> str:
        """All the prose, with its lines joined."""
        return " ".join(" ".join(cell.source.split()) for cell in self.cells if cell.cell_type == "markdown")

    def output(self, code: str) -> str:
        """What the one cell that has `code` in it put out."""
        (cell,) = (cell for cell in self.cells if cell.cell_type == "code" and code in cell.source)
        return output_text(cell)

    def truths(self) -> list[str]:
        """What the engine said to each question, in order."""
        marks = ("The engine says ", "Right: ")
        lines = (line.strip() for line in self.text.splitlines())
        return [line.removeprefix(mark).rstrip(".") for line in lines for mark in marks if line.startswith(mark)]

    def warnings(self) -> list[str]:
        """What cells wrote to stderr."""
        outputs = (output for cell in self.cells for output in cell.get("outputs", []))
        return [output.text for output in outputs if output.get("name") == "stderr"]


def output_text(cell: nbformat.NotebookNode) -> str:
    """What a terminal would show of a cell's output."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") + "\n" for output in cell.outputs)


@pytest.fixture
def run_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Lesson]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lesson leaves a crash file on purpose

    def run(name: str) -> Lesson:
        notebook = load(name)
        place = {"metadata": {"path": str(tmp_path)}}
        start = time.monotonic()
        try:
            NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=place).execute()
        except (CellExecutionError, CellTimeoutError) as error:
            pytest.fail(f"{name}: {error}", pytrace=False)
        return Lesson(notebook, time.monotonic() - start)

    return run
