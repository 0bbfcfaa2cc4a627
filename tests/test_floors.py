"""The plan of the house holds: imports point down, light things stay light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_an_import_may_only_point_down() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("nbengine", ["torch", "zmq", "transformers", "IPython", "ipywidgets"]),
        ("nbengine.observe.records", ["torch", "zmq", "transformers", "matplotlib"]),
        ("nbengine.debug.trace", ["torch", "zmq", "transformers", "matplotlib"]),
        ("nbengine.llm", ["IPython", "ipywidgets", "nbengine_widgets", "matplotlib"]),
        ("nbengine_widgets", ["torch", "zmq", "transformers"]),
        ("nbengine_kernels", ["numba", "triton", "nbengine"]),
    ],
)
def test_importing_one_thing_does_not_import_another(module: str, banned: list[str]) -> None:
    code = f"import {module}, sys; print([name for name in {banned!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_no_source_file_outgrows_a_reader() -> None:
    files = [*ROOT.glob("nbengine/**/*.py"), *ROOT.glob("kernels/**/*.py"), *ROOT.glob("widgets/src/**/*.ts*")]
    files += ROOT.glob("widgets/nbengine_widgets/**/*.py")
    assert len(files) > 50
    long = {str(f.relative_to(ROOT)): n for f in files if (n := f.read_text().count("\n")) > 500}
    assert not long
