"""R012: what waits, what runs, what there is so far, abort one, abort all, and go on after an exception: a line each."""

from __future__ import annotations

from typing import Any

import pytest

from nbengine import SamplingParams
from nbengine.errors import StepError
from tests.scripted import scripted_llm

PARAMS = SamplingParams(temperature=0, max_tokens=8)
SCRIPT = {str(i): f"answer{i}" for i in range(5)}


def test_after_five_requests_and_three_steps() -> None:
    llm: Any = scripted_llm(SCRIPT, max_num_seqs=3)
    llm.enqueue(["x"] * 5, PARAMS)
    for _ in range(3):
        llm.llm_engine.step()
    assert llm.waiting() == ["3", "4"]
    assert llm.running() == ["0", "1", "2"]
    assert [output.outputs[0].text for output in llm.partial_outputs()] == ["ans", "ans", "ans", "", ""]
    llm.abort("1")
    assert llm.running() == ["0", "2"]
    assert llm.abort_all() == ["0", "2", "3", "4"]
    assert not llm.running() and not llm.waiting()
    assert llm.llm_engine.engine_core.core.scheduler.kv.pool.num_free == 31
    (output,) = llm.generate("x", PARAMS, use_tqdm=False)
    assert output.finished and output.outputs[0].finish_reason == "length"


def test_going_on_after_an_exception() -> None:
    def before_step(executor: Any, plan: Any) -> None:
        if plan.step == 3 and len(executor.steps) == 3:
            executor.steps.append(plan)
            raise RuntimeError("boom")

    llm = scripted_llm(SCRIPT, executor={"before_step": before_step})
    with pytest.raises(StepError):
        llm.generate(["x"] * 5, PARAMS, use_tqdm=False)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == list(SCRIPT.values())
