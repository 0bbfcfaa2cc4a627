"""The progress bar: one a call, and it ends at exactly its total."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from nbengine import LLM, SamplingParams
from nbengine.errors import StepError
from tests.scripted import scripted_llm


class Bar:
    """Stands in for tqdm and remembers."""

    made: list[Bar]

    def __init__(self, total: int, **options: Any) -> None:
        self.total, self.n, self.closed, self.postfix = total, 0, False, ""
        type(self).made.append(self)

    def update(self, n: int) -> None:
        self.n += n

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self.postfix = text

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def bars() -> list[Bar]:
    Bar.made = []
    return Bar.made


PARAMS = SamplingParams(temperature=0, max_tokens=4)


def test_it_counts_prompts_to_the_end(bars: list[Bar]) -> None:
    scripted_llm().generate(["a", "b", "c"], PARAMS, use_tqdm=Bar)
    (bar,) = bars
    assert (bar.n, bar.total, bar.closed) == (3, 3, True)
    assert "tok/s in" in bar.postfix and "inf" not in bar.postfix and "nan" not in bar.postfix


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_it_is_closed_at_its_total_after_an_error(bars: list[Bar], error: type[BaseException]) -> None:
    def before_step(executor: Any, plan: Any) -> None:
        if plan.step == 1:
            raise error

    llm = scripted_llm({"0": ""}, executor={"before_step": before_step})
    with pytest.raises((StepError, KeyboardInterrupt)):
        llm.generate(["a", "b", "c"], PARAMS, use_tqdm=Bar)
    (bar,) = bars
    assert (bar.n, bar.total, bar.closed, bar.postfix) == (1, 1, True, "2 of 3 left")


def test_off_means_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    scripted_llm().generate("a", PARAMS, use_tqdm=False)
    assert capsys.readouterr() == ("", "")


def test_the_real_one_prints_one_bar(capsys: pytest.CaptureFixture[str]) -> None:
    scripted_llm().generate(["a", "b"], PARAMS)
    out, err = capsys.readouterr()
    assert out == ""
    assert "100%" in err and "2/2" in err and err.count("\n") == 1


def test_no_prompts_no_bar(bars: list[Bar]) -> None:
    scripted_llm().generate([], PARAMS, use_tqdm=Bar)
    assert bars == []


def test_without_ipywidgets_there_is_no_warning() -> None:
    """In a kernel without ipywidgets tqdm.auto would warn that IProgress was not found."""
    code = """
import sys, types, warnings
warnings.simplefilter("always")
sys.modules["ipykernel.zmqshell"] = types.ModuleType("zmqshell")  # tqdm takes this for a kernel
sys.modules["ipywidgets"] = sys.modules["IPython.html.widgets"] = None
ipython = types.ModuleType("IPython"); ipython.get_ipython = lambda: object(); sys.modules["IPython"] = ipython
from nbengine.engine.progress import Progress
with Progress(1, True) as progress:
    progress.advance(1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1/1" in done.stderr and "Warning" not in done.stderr


def test_every_call_has_its_own(bars: list[Bar]) -> None:
    llm: LLM = scripted_llm()
    for _ in range(2):
        llm.generate("a", PARAMS, use_tqdm=Bar)
    assert [bar.n for bar in bars] == [1, 1]
