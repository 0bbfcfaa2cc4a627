"""R054: an observer that is absent, or raises when a request finishes, harms nobody: the engine goes on, the error is
reported once, and the observer is taken off."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nbengine import SamplingParams
from tests.scripted import scripted_llm


class Broken:
    def __getattr__(self, name: str) -> Any:
        if name == "on_updated":
            return self.fail_when_one_finishes
        if name.startswith("on_"):
            return lambda *facts: None
        raise AttributeError(name)

    def fail_when_one_finishes(self, outputs: Any, seconds: float) -> None:
        if any(output.finish_reason for output in outputs.outputs):
            raise KeyError("request already freed")


@pytest.mark.parametrize("observer", [None, Broken()], ids=["none", "raises"])
def test_the_engine_goes_on(observer: Any, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> None:
    llm: Any = scripted_llm({"0": "a", "1": "bcd"})
    core = llm.llm_engine.engine_core.core
    core.observer = observer
    with caplog.at_level(logging.ERROR, "nbengine"):
        if observer is None:
            outputs = llm.generate(["x", "y"], SamplingParams(temperature=0), use_tqdm=False)
        else:
            with pytest.warns(UserWarning, match="detached"):
                outputs = llm.generate(["x", "y"], SamplingParams(temperature=0), use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == ["a", "bcd"]
    assert core.observer is None
    assert len(caplog.records) == (observer is not None)
    core.check_invariants()
