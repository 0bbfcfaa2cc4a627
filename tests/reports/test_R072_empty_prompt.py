"""R072: an empty prompt is a ValueError for that call alone, whitespace is a prompt like any other, and with a tokenizer
that begins every text with BOS "" is one too."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from nbengine import SamplingParams
from tests.scripted import ByteTokenizer, scripted_llm

PARAMS = SamplingParams(temperature=0, max_tokens=4)


@pytest.mark.parametrize("prompts", ["", {"prompt_token_ids": []}, [[]], ["good", "", "good"], ["good", []]])
def test_it_is_refused_and_nothing_else_is_harmed(prompts: Any) -> None:
    llm = scripted_llm({"running": "abc"})
    llm.llm_engine.add_request("running", "x", PARAMS)
    llm.llm_engine.step()
    with pytest.raises(ValueError, match="empty"):
        llm.generate(prompts, PARAMS, use_tqdm=False)
    assert llm.running() == ["running"] and not llm.waiting()
    (output,) = llm.wait_for_completion(use_tqdm=False)
    assert output.outputs[0].text == "abc"
    assert all(answer.finished for answer in llm.generate([" ", "\n\t"], PARAMS, use_tqdm=False))


def test_with_bos_it_is_valid() -> None:
    llm = scripted_llm({"0": "hi"}, executor={"make_tokenizer": partial(ByteTokenizer, adds_bos=True)})
    (output,) = llm.generate("", PARAMS, use_tqdm=False)
    assert (output.prompt_token_ids, output.outputs[0].text) == ([257], "hi")
