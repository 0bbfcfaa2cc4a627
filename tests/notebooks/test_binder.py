"""binder/ names the versions that CI tested, all that nbengine needs, and scripts that can run."""

from __future__ import annotations

import importlib
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
yaml: Any = importlib.import_module("yaml")  # it comes without types
ENVIRONMENT = yaml.safe_load((ROOT / "binder" / "environment.yml").read_text())
PIP = next(entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict))


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lines: list[str]) -> dict[str, str]:
    parts = (line.split("==") for line in lines if "==" in line)
    return {plain(name): version for name, version in parts}


def names(requirements: list[str]) -> set[str]:
    return {plain(re.split(r"[<>=!~\[ ]", line)[0]) for line in requirements}


PINS = pins(PIP)


def test_python_and_node_are_pinned() -> None:
    assert {"python=3.12", "nodejs=22", "pip"} <= {entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)}


def test_the_versions_are_those_that_ci_tested() -> None:
    tested = pins((ROOT / "constraints.txt").read_text().splitlines())
    assert {name: version.removesuffix("+cpu") for name, version in PINS.items()} == {name: tested[name] for name in PINS}


def test_all_that_nbengine_needs_is_there_and_torch_without_cuda() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert names([*project["dependencies"], *extras["cpu"], *extras["lab"]]) == set(PINS)
    assert PINS["torch"].endswith("+cpu")
    assert [line for line in PIP if "==" not in line] == ["--extra-index-url https://download.pytorch.org/whl/cpu"]


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_the_scripts_can_be_run_and_stop_at_an_error(name: str) -> None:
    path = ROOT / "binder" / name
    assert path.stat().st_mode & stat.S_IXUSR
    assert path.read_text().startswith("#!/usr/bin/env bash\n") and "set -euo pipefail" in path.read_text()
