"""R115: teachers want numbers that fit a blackboard, and questions before answers. (tests/notebooks/test_course.py
runs every lesson top to bottom and checks each number of the prose against what the cells put out.)"""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

LESSONS = sorted((Path(__file__).parents[2] / "notebooks").glob("0[2-6]_*.ipynb"))


@pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])
def test_a_lesson_has_few_and_small_blocks_and_asks_before_it_shows(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    calls = [
        node
        for cell in notebook.cells
        if cell.cell_type == "code"
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    engines = [{word.arg: word.value for word in call.keywords} for call in calls if call.func.id == "LLM"]  # type: ignore[attr-defined]
    assert engines, "no engine is made"
    for options in engines:
        size, blocks = options["block_size"], options["num_gpu_blocks_override"]
        assert isinstance(size, ast.Constant) and size.value <= 16
        assert isinstance(blocks, ast.Constant) and blocks.value <= 40
    assert sum(call.func.id == "predict" for call in calls) >= 3  # type: ignore[attr-defined]


def test_there_is_a_course() -> None:
    assert len(LESSONS) >= 5
