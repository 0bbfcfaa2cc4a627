"""The lessons run unattended, warn of nothing, and every number that their prose states is the engine's."""

from __future__ import annotations

import ast
from collections.abc import Callable

import nbformat
import pytest

from tests.notebooks.conftest import FOLDER, Lesson, load, output_text

LESSONS = sorted(path.stem for path in FOLDER.glob("0[1-6]_*.ipynb"))
Run = Callable[[str], Lesson]


def states(lesson: Lesson, prose: str, code: str, *outputs: str) -> None:
    """The prose says this, and the cell with `code` in it put that out."""
    assert prose in lesson.prose, f"the prose does not say {prose!r} any more"
    said = lesson.output(code)
    for output in outputs:
        assert output in said, f"{prose!r} is in the prose, but the cell said:\n{said}"


# --------------------------------------------------------------------------------------------------- without running them


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_stored_clean(name: str) -> None:
    text = (FOLDER / f"{name}.ipynb").read_text()
    notebook = load(name)
    nbformat.validate(notebook)
    assert text.endswith("}\n") and "/work/" not in text and "/home/" not in text
    assert notebook.metadata.kernelspec.name == "python3" and notebook.metadata.language_info == {"name": "python"}
    assert [cell.id for cell in notebook.cells] == [f"cell-{i:02d}" for i in range(len(notebook.cells))]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert code[-1].source.endswith("dbg.view") or code[-1].source == "dbg.view"  # a still picture, for those who only read


@pytest.mark.parametrize("name", LESSONS[1:])
def test_a_lesson_asks_three_to_six_questions_and_leaves_them_open(name: str) -> None:
    notebook = load(name)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    guesses: list[str] = []
    asked: list[str] = []
    for tree in map(ast.parse, sources):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if node.targets[0].id.startswith("guess_"):
                    assert isinstance(node.value, ast.Constant) and node.value.value is None
                    guesses.append(node.targets[0].id)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "predict":
                assert isinstance(node.args[1], ast.Name)
                asked.append(node.args[1].id)
    assert guesses == asked and 3 <= len(guesses) <= 6 and len(set(guesses)) == len(guesses)


# ----------------------------------------------------------------------------------------------------------- running them


@pytest.mark.notebook
@pytest.mark.slow
def test_01_step_by_step(run_notebook: Run) -> None:
    lesson = run_notebook("01_step_by_step")
    assert lesson.warnings() == []
    states(lesson, "until the budget of 32 tokens was used up", "dbg.schedule()", "32 tokens")
    assert lesson.truths() == ["r4"]
    assert "the three that r4 gave back are free, and still cached" in lesson.output("plots.kv_map")
    states(
        lesson, "reason of steps 33 to 39", "dbg.history", "step 33: passed over, reserve", "step 39: passed over, reserve"
    )
    states(lesson, "16 of its 48 tokens", "dbg.history", "48 computed tokens lost", "step 40: resumed, 31 tokens, 16 cached")
    story = lesson.output("dbg.history")
    assert (
        "step 32: preempted, for itself" in story
        and "step 49: finished" in story
        and "in step 49" in lesson.output("plots.gantt")
    )
    states(lesson, "the pool has 12", "dbg.run()\nfor moment", "finished, length")
    assert "12 of 12 blocks free" in output_text(lesson.cells[-1])


@pytest.mark.notebook
@pytest.mark.slow
def test_02_paged_kv_cache(run_notebook: Run) -> None:
    lesson = run_notebook("02_paged_kv_cache")
    assert lesson.warnings() == []
    assert lesson.truths() == ["46,080", "3", "13", "3", "5"]
    assert "fills a block of 184,320 bytes" in lesson.prose and 4 * 46_080 == 184_320
    states(lesson, "This prompt has 11 tokens", "on seven hills", "11 tokens for 1 request", "1-3")
    states(lesson, "The table is 1, 2, 3.", "slot_mapping", "[1, 2, 3]", "[4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]")
    states(lesson, "The 12th slot of the table has no token yet", "copy_blocks_out", "slot 14: written", "slot 15: empty")
    growing = lesson.output("for _ in range(6)")
    assert "step 1: 12 tokens computed, 13 known, blocks [1, 2, 3]\nstep 2: 13 tokens" in growing
    assert "r1 [1, 2, 3, 4, 5]\nr2 [6]\nr3 [7, 8]" in lesson.output("Water boils")
    assert "9 and 10 are free" in lesson.output("plots.kv_map")
    states(lesson, "here 40 tokens", "one piece each", "one piece each: 120 slots, 90 of them empty (75%)")
    assert "pages: 32 slots, 2 of them empty (6%)" in lesson.output("one piece each")
    states(lesson, "Its table is 1, 2, 3, 4, 5.", "free queue after", "before: [9, 10]", "[5, 4, 3, 2, 1, 10]")
    states(lesson, "all ten blocks are free", "dbg.run()\nprint", "10 of 10 blocks free")


@pytest.mark.notebook
@pytest.mark.slow
def test_03_continuous_batching(run_notebook: Run) -> None:
    lesson = run_notebook("03_continuous_batching")
    assert lesson.warnings() == []
    assert lesson.truths() == ["18", "12", "14", "3"]
    assert "r2 ends in step 8" in lesson.output("serve(static)")
    steps = lesson.output("seats_taken(debugger):")
    assert "[0, 0, 0, 9, 9, 9], 56% of the seats" in steps and "[0, 0, 0, 3, 3, 6], 83% of the seats" in steps
    assert "r4 and r5 take the seats of r1 and r3 in step 3, r6 takes that of r4 in step 6" in lesson.text
    states(lesson, "Both computed the same 30 tokens", "static.compare(dbg)", "output_tokens      30")
    assert "the same answers: yes" in steps
    states(lesson, "a prompt of 40 tokens arrives, and the budget is 16", 'explain("long")', "14 of 40 tokens computed")
    states(lesson, "one step of 42 tokens", "budget 64", "[42, 3, 2, 2, 2, 2], first token of long in step 1")
    assert "[16, 16, 14, 3, 2, 2], first token of long in step 3" in lesson.output("budget 64")
    assert "in chunks of 14, 14 and 12" in lesson.output("plots.tokens")


@pytest.mark.notebook
@pytest.mark.slow
def test_04_prefix_caching(run_notebook: Run) -> None:
    lesson = run_notebook("04_prefix_caching")
    assert lesson.warnings() == []
    assert lesson.truths() == ["12", "8", "4", "12", "5"]
    states(lesson, "its five blocks are free", '"sky", **short)\ndbg.step()', "18 of 19 tokens", "5 still cached")
    states(lesson, "How many of its 18 tokens", 'What is a block table?", "table", **short)\ndbg.step()\npredict', "12")
    assert "[3, 8]" in lesson.output("third = ")  # the duplicate
    chains = [line.split()[1:] for line in lesson.output("chain in names").splitlines()]
    assert len(chains) == 2 and chains[0][0] == chains[1][0] and not set(chains[0][2::2]) & set(chains[1][2::2])
    states(lesson, "only who has the same salt finds them", "for salt in", "salt bob: 0 tokens")
    assert lesson.output("for salt in").split("salt ")[1:] == [
        "None: 16 tokens found\n", "alice: 0 tokens found\n", "bob: 0 tokens found\n", "alice: 16 tokens found\n",
    ]  # fmt: skip
    assert "blocks that both hold: 3" in lesson.output("both hold")
    table = ast.literal_eval(lesson.output("table of sky").splitlines()[0].partition(": ")[2])
    assert f"evicted: {[table[4], table[3]]}" in lesson.output("evicted = ")
    states(lesson, "the next question finds its 12 tokens", '"table", **short)\ndbg.step()\nprint', "12 tokens found")


@pytest.mark.notebook
@pytest.mark.slow
def test_05_preemption_and_priority(run_notebook: Run) -> None:
    lesson = run_notebook("05_preemption_and_priority")
    assert lesson.warnings() == []
    assert lesson.truths() == ["r3", "12", "4", "r1", "0", "no"]
    states(lesson, "in the middle of step 5", "explain(victim)", "in step 5 r3 was preempted: r2 needed 1 block and 0 were")
    states(lesson, "13 tokens, 4 blocks", "comeback", "13 of 13 tokens computed, 4 blocks", "8 tokens found", "in step 9")
    assert "comes back in step 9 and ends in step 12" in lesson.output("plots.gantt")
    states(lesson, "`r1` stands first in the batch", "other.explain", "in step 5 r1 was preempted: r2 needed 1 block")
    totals = lesson.output("dbg.compare(other)").splitlines()
    assert [line.split()[1:] for line in totals if "tokens_recomputed" in line or " steps " in line] == [
        ["8", "8"],
        ["4", "4"],
    ]
    states(lesson, "it gives 3 blocks back", 'explain("r2")', "gave back 3 blocks", "r2, before it, preempted itself")
    states(lesson, "= 5 blocks here", "watermark=0.5", "6 are free, with 5 to be kept free")
    states(lesson, "sooner than after 13 steps", "without", "18 steps with the watermark, 13 without")
    states(lesson, "`big` needs 6, and 5 are free", '"small", max', "needs 6 blocks and 5 are free", "stands behind big")
    assert "6 finished" in lesson.output("dbg.run()\ndbg.view")


@pytest.mark.notebook
@pytest.mark.slow
def test_06_write_your_own_scheduler(run_notebook: Run) -> None:
    lesson = run_notebook("06_write_your_own_scheduler")
    assert lesson.warnings() == []
    assert lesson.truths() == ["20", "8", "b, c, a", "5"]
    states(lesson, "In the same number of steps, 12 tokens less", "comparison = ", "tokens_recomputed  20", "8")
    totals = lesson.output("comparison = ").splitlines()
    assert [line.split()[1:] for line in totals if line.split()[0] == "steps"] == [["11", "11"]]
    stories = lesson.output("why_not(lost, step=5)")
    assert "r3 - in step 5 r3 was preempted" in stories and "r2 - in step 5 r2 was preempted" in stories
    assert "4.7 on average" in lesson.output("on average") and "2.7 on average" in lesson.output("on average")
    assert "Block 3 has reference count 1, but 0 tables hold it." in lesson.output("keeper.run()")
    assert "schedule of step 16 failed: IndexError" in lesson.output("except StepError")
    states(lesson, "All three finished, with the same tokens", "rescued.output", "r1 True", "r2 True", "r3 True")
