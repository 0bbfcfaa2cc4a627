"""R019: a generate call makes at most one progress bar, which ends at 100 %, also after an error; off means no output;
without ipywidgets there is no TqdmWarning (tests/engine/test_progress.py has that in a process of its own)."""

from __future__ import annotations

from typing import Any

import pytest

from nbengine import SamplingParams
from nbengine.errors import StepError
from tests.scripted import scripted_llm


def test_one_bar_closed_at_its_total(capsys: pytest.CaptureFixture[str]) -> None:
    scripted_llm().generate(["a"] * 4, SamplingParams(max_tokens=30), use_tqdm=True)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)  # one line, drawn over
    assert "100%" in err.rpartition("\r")[2] and "4/4" in err


def test_after_an_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    def before_step(executor: Any, plan: Any) -> None:
        if plan.step == 2:
            raise RuntimeError("boom")

    llm = scripted_llm({"0": ""}, executor={"before_step": before_step})
    with pytest.raises(StepError):
        llm.generate(["a"] * 4, SamplingParams(max_tokens=30))
    last = capsys.readouterr().err.rpartition("\r")[2]
    assert "100%" in last and "1/1" in last and "3 of 4 left" in last


def test_off_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    scripted_llm().generate("a", use_tqdm=False)
    assert capsys.readouterr() == ("", "")
