"""The `nbengine` command: what it prints, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nbengine
from nbengine import cli, llm
from nbengine.errors import ModelError
from nbengine.models import catalog
from tests.scripted import scripted_llm


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out == f"nbengine {nbengine.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["generate"], ["pull", "a", "b"]])
def test_wrong_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main(argv)
    assert done.value.code == 2
    assert "usage: nbengine" in capsys.readouterr().err


def test_pull_prints_the_directory_last(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def pull(name: str, *, progress: bool) -> Path:
        asked.append((name, progress))
        return Path("somewhere") / name

    monkeypatch.setattr(catalog, "pull", pull)
    assert cli.main(["pull"]) == 0
    assert cli.main(["pull", "other", "-q"]) == 0
    assert asked == [("smollm2-135m", True), ("other", False)]
    assert capsys.readouterr().out.splitlines() == [str(Path("somewhere/smollm2-135m")), str(Path("somewhere/other"))]


def test_an_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def pull(name: str, *, progress: bool) -> Path:
        raise ModelError("No such model.")

    monkeypatch.setattr(catalog, "pull", pull)
    assert cli.main(["pull", "x"]) == 1
    assert capsys.readouterr() == ("", "nbengine: No such model.\n")


@pytest.mark.parametrize(
    ("error", "words"),
    [(FileNotFoundError(2, "No such file", "x.jsonl"), "No such file: x.jsonl"), (KeyboardInterrupt(), "interrupted")],
)
def test_other_ends(
    error: BaseException, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(catalog, "list_models", fail)
    assert cli.main(["models"]) == 1
    assert capsys.readouterr().err == f"nbengine: {words}\n"


def test_models_lists_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("smollm2-135m ")]
    assert "SmolLM2-135M-Instruct" in line and "Apache-2.0" in line


@pytest.mark.parametrize(("extra", "prompt"), [([], "Hi"), (["--chat"], "[user] Hi\n[assistant] ")])
def test_generate_streams_the_text(
    extra: list[str], prompt: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = scripted_llm({"cli": "Hello 🔥"})
    monkeypatch.setattr(llm, "LLM", lambda model: made)
    assert cli.main(["generate", "Hi", "--max-tokens", "30", *extra]) == 0
    assert capsys.readouterr().out == "Hello 🔥\n"
    executor: Any = made.llm_engine.engine_core.core.executor  # type: ignore[attr-defined]
    assert bytes(executor.steps[0].scheduled_new_reqs[0].token_ids[: len(prompt)]).decode() == prompt
    assert executor.is_shut_down


def test_help_is_quick_and_needs_no_torch() -> None:
    code = "import sys; from nbengine import cli\ntry: cli.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("pull", "models", "generate", "schedule-trace", "trace"):
        assert command in done.stdout
