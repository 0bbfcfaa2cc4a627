"""R026: a prompt that fits max_model_len but can never fit the KV pool does not wait for ever: max_model_len shrinks to the
pool with a warning, the prompt is refused with both numbers, and those behind it run."""

from __future__ import annotations

import pytest

from nbengine import SamplingParams
from nbengine.errors import InvalidRequestError
from tests.scripted import scripted_llm


def test_it_is_refused_with_both_numbers_and_the_next_one_runs() -> None:
    with pytest.warns(UserWarning, match=r"max_model_len is now 784 tokens, not 2048.*49 usable blocks"):
        llm = scripted_llm({"p2": "abc"}, block_size=16, num_gpu_blocks_override=50, max_model_len=2048)
    engine = llm.llm_engine
    with pytest.raises(InvalidRequestError, match="63 KV blocks of 16 tokens, and 49 are available"):
        engine.add_request("p1", "x" * 1002, SamplingParams(max_tokens=3))
    engine.add_request("p2", "x" * 5, SamplingParams(max_tokens=3))
    (output,) = llm.wait_for_completion(use_tqdm=False)
    assert (output.request_id, len(output.outputs[0].token_ids)) == ("p2", 3)
    assert not engine.waiting()
