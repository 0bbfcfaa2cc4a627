"""The Lab's buttons on the ipykernels that people have, at the level of messages: who answers, and what works then."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client import KernelManager

from tests.widgets.front_end import FrontEnd

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SUBSHELL = "7.3.0", "7.4.0"
MATRIX = [(version, False) for version in ("6.31.0", *SUBSHELL)] + [(version, True) for version in SUBSHELL]
NAMES = [f"{version}-{'subshell' if subshell else 'main'}" for version, subshell in MATRIX]

SETUP = """
import time, pathlib, tempfile
from nbengine_widgets import static_page
static_page.STATIC = folder = pathlib.Path(tempfile.mkdtemp())
(folder / "lab.js").write_text("export default {};"), (folder / "lab.css").write_text("")
from nbengine import SamplingParams
from tests.scripted import scripted_llm
llm = scripted_llm(executor={"before_step": lambda executor, plan: time.sleep(0.03)})
dbg = llm.debug()
params = [SamplingParams(seed=seed, max_tokens=50) for seed in (1, 2)]
lab = dbg.lab
"""
GENERATE = "texts = [output.outputs[0].text for output in llm.generate(['one', 'two'], params, use_tqdm=False)]"


@pytest.fixture(scope="module")
def ipykernels(request: pytest.FixtureRequest) -> dict[str, Path | None]:
    """For each version a folder to put before all others; None for the installed one. Downloaded once, then cached."""
    folders: dict[str, Path | None] = {importlib.metadata.version("ipykernel"): None}
    for version in {version for version, _ in MATRIX} - set(folders):
        folder = Path(request.config.cache.mkdir("ipykernel")) / version  # type: ignore[union-attr]
        if not (folder / "ipykernel").exists():
            wanted = [f"ipykernel=={version}", "nest_asyncio"]
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *wanted]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                continue  # its tests say so
        folders[version] = folder
    return folders


@pytest.fixture
def front_end(ipykernels: dict[str, Path | None], request: pytest.FixtureRequest) -> Iterator[FrontEnd]:
    version, subshell = request.param
    if version not in ipykernels:
        pytest.skip(f"ipykernel {version} could not be installed from PyPI")
    paths = [str(path) for path in (ipykernels[version], ROOT) if path is not None]
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(ROOT), env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        front = FrontEnd(client, subshell=subshell)
        assert front.ask("__import__('ipykernel').__version__") == version
        yield front
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("front_end", MATRIX, ids=NAMES, indirect=True)
def test_a_blocking_generate_is_paused_where_a_second_thread_answers(
    front_end: FrontEnd, request: pytest.FixtureRequest
) -> None:
    """Live: pause, step and run reach the cell. Else the Lab learns that they do not, and they wait for the cell's end."""
    front = front_end
    front.run(SETUP)
    front.connect()
    subshell = "subshell" in request.node.name
    assert front.live == subshell
    assert front.hellos_answered > 0
    front.run(GENERATE)
    undisturbed = front.ask("texts")
    front.until(lambda: front.view is not None and not front.view.running)
    start = front.step
    cell = front.start(GENERATE)
    front.until(lambda: front.step > start + 3)
    front.command("pause")
    if subshell:
        front.until(lambda: front.status.get("state") == "paused")
        front.listen(0.3)
        here = front.step
        front.listen(0.5)
        assert front.step == here and not front.is_done(cell), "the engine went on after the pause"
        front.command("step")
        front.until(lambda: front.step == here + 1)
        front.listen(0.3)
        assert front.step == here + 1
        front.command("run")
        front.wait_cell(cell)
    else:
        front.wait_cell(cell)  # nobody heard the button
        front.until(lambda: front.status.get("state") == "paused")
        front.command("run")
        front.until(lambda: front.status.get("state") != "paused")
    assert front.ask("texts") == undisturbed
    assert front.ask("dbg.core.check_invariants()") is None


@pytest.mark.parametrize("front_end", MATRIX, ids=NAMES, indirect=True)
def test_play_is_reached_everywhere(front_end: FrontEnd) -> None:
    front = front_end
    front.run(SETUP)
    front.connect()
    front.run(GENERATE)
    front.run("for seed in (1, 2): dbg.add('hello', f's{seed}', seed=seed, max_tokens=50)\ndbg.play();")
    front.until(lambda: front.view is not None and len(front.view.running) == 2 and front.step > 53)
    front.command("pause")
    front.until(lambda: front.status.get("state") == "paused")
    front.listen(0.3)
    here = front.step
    front.listen(0.4)
    assert front.step == here
    phase = front.ask("str(dbg.core.next_phase)")
    front.command("phase")
    front.until(lambda: front.phase == {"schedule": "execute", "execute": "update", "update": "schedule"}[phase])
    front.command("step")  # to the end of the step under way, or a whole one
    front.until(lambda: (front.step, front.phase) == (here + 1 + (phase == "update"), "schedule"))
    front.command("run")
    front.until(lambda: front.view is not None and not front.view.running)
    assert front.ask("[dbg.output(name).outputs[0].text for name in ('s1', 's2')]") == front.ask("texts")
