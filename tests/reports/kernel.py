"""Cells for reports that need a real kernel: an engine without a model, made in a moment."""

from __future__ import annotations

from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]

# The kernel starts in the folder of the tests; a stub stands for the bundle, so that no Node is needed.
SETUP = f"""
import sys, pathlib, tempfile
sys.path.insert(0, {str(ROOT)!r})
from nbengine_widgets import static_page
static_page.STATIC = pathlib.Path(tempfile.mkdtemp())
(static_page.STATIC / "lab.js").write_text("export default {{}};"), (static_page.STATIC / "lab.css").write_text("")
from tests.observe.engines import make_llm
dbg = make_llm(num_blocks=60, max_model_len=200).debug()
for name in "abc":
    dbg.add("hello " + name, name, max_tokens=100, temperature=0, ignore_eos=True)
"""


def cell(source: str) -> nbformat.NotebookNode:
    """A code cell that shows nothing by itself."""
    return nbformat.v4.new_code_cell(f"{source}\nNone")
