"""R056: aborting a request with n > 1, before its first step, after two, or when one answer has ended, ends every answer,
frees all blocks, leaves nothing in the books, and gives one last output with finish_reason abort."""

from __future__ import annotations

from typing import Any

import pytest

from nbengine import SamplingParams
from tests.scripted import scripted_llm

SCRIPT = {"0_a": "abcdefgh", "1_a": "i", "2_a": "klmnopqr"}


@pytest.mark.parametrize(
    ("steps", "reasons", "texts"),
    [
        (0, ["abort"] * 3, ["", "", ""]),
        (1, ["abort"] * 3, ["a", "i", "k"]),
        (3, ["abort", "stop", "abort"], ["abc", "i", "klm"]),
    ],
)
def test_all_answers_go(steps: int, reasons: list[str], texts: list[str]) -> None:
    llm: Any = scripted_llm(SCRIPT)
    engine = llm.llm_engine
    engine.add_request("a", "x" * 9, SamplingParams(n=3, temperature=0, max_tokens=8))
    for _ in range(steps):
        engine.step()
    engine.abort_request("a")
    (last,) = engine.take_outputs()
    assert last.finished
    assert [answer.finish_reason for answer in last.outputs] == reasons
    assert [answer.text for answer in last.outputs] == texts
    assert not engine.running() and not engine.waiting() and engine.step() == []
    assert not engine.output_processor.requests and not engine.output_processor._by_core_id
    core = engine.engine_core.core
    assert core.scheduler.kv.pool.num_free == 31
    core.check_invariants()
