"""R075: n=4 in a pool with room for two at a time: the others wait their turn, and all four finish."""

from __future__ import annotations

from typing import Any

from nbengine import SamplingParams
from tests.scripted import scripted_llm


def test_all_four_finish() -> None:
    # 6 usable blocks of 4 tokens; an answer grows to 11 tokens of 12: 3 blocks
    llm: Any = scripted_llm(num_gpu_blocks_override=7, max_model_len=24, enable_prefix_caching=False)
    llm.llm_engine.add_request("a", "xxxxx", SamplingParams(n=4, seed=1, max_tokens=6))
    most = 0
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.advance()
        most = max(most, len(llm.running()))
    (output,) = llm.llm_engine.take_outputs()
    assert [(len(answer.token_ids), answer.finish_reason) for answer in output.outputs] == [(6, "length")] * 4
    assert 2 <= most < 4
    assert llm.llm_engine.engine_core.core.scheduler.kv.pool.num_free == 6
