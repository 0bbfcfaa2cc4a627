"""R067: a token id that the vocabulary does not have, in stop_token_ids, logit_bias, allowed_token_ids or the prompt, is a
ValueError for that request alone; the engine and the other requests go on."""

from __future__ import annotations

from typing import Any

import pytest

from nbengine import SamplingParams
from tests.scripted import VOCAB_SIZE, scripted_llm


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        *[([1], {"stop_token_ids": [bad], "min_tokens": 1}) for bad in (-1, VOCAB_SIZE, 10**9)],
        *[([1], {"logit_bias": {bad: 1.0}}) for bad in (-1, VOCAB_SIZE)],
        *[([1], {"allowed_token_ids": [0, bad]}) for bad in (-1, VOCAB_SIZE)],
        *[({"prompt_token_ids": [1, bad]}, {}) for bad in (-1, VOCAB_SIZE)],
    ],
)
def test_only_that_request_is_refused(prompt: Any, params: dict[str, Any]) -> None:
    llm = scripted_llm({"good": "fine"})
    llm.llm_engine.add_request("good", "x", SamplingParams(temperature=0))
    llm.llm_engine.step()
    with pytest.raises(ValueError, match=r"vocabulary is 0 … 259"):
        llm.generate([prompt], SamplingParams(**params), use_tqdm=False)
    (output,) = llm.wait_for_completion(use_tqdm=False)
    assert output.outputs[0].text == "fine"


def test_the_last_id_of_the_vocabulary_is_fine() -> None:
    llm = scripted_llm()
    params = SamplingParams(stop_token_ids=[VOCAB_SIZE - 1], min_tokens=1, logit_bias={0: 1.0}, max_tokens=2)
    assert llm.generate([[VOCAB_SIZE - 1, 0]], params, use_tqdm=False)[0].finished
