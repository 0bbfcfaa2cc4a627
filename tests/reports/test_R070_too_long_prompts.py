"""R070: a prompt that is too long is refused with max_model_len and its own length, never with a derived max_tokens. A
max_tokens that is more than fits is kept, and the length ends the request: the same in generate, chat and add_request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nbengine import LLM, SamplingParams
from nbengine.outputs import RequestOutput
from tests.scripted import scripted_llm

Entry = Callable[[LLM, int, SamplingParams], RequestOutput]


def by_generate(llm: LLM, length: int, params: SamplingParams) -> RequestOutput:
    return llm.generate("x" * length, params, use_tqdm=False)[0]


def by_chat(llm: LLM, length: int, params: SamplingParams) -> RequestOutput:
    message = [{"role": "u", "content": "x" * (length - len("[u] \n"))}]
    return llm.chat(message, params, use_tqdm=False, add_generation_prompt=False)[0]


def by_hand(llm: LLM, length: int, params: SamplingParams) -> RequestOutput:
    llm.llm_engine.add_request("a", "x" * length, params)
    return llm.wait_for_completion(use_tqdm=False)[0]


@pytest.mark.parametrize("entry", [by_generate, by_chat, by_hand])
class TestEveryEntry:
    @pytest.mark.parametrize("max_tokens", [None, 1, 100])
    def test_fifteen_of_sixteen_gives_one_token(self, entry: Entry, max_tokens: int | None) -> None:
        answer = entry(scripted_llm(max_model_len=16), 15, SamplingParams(max_tokens=max_tokens)).outputs[0]
        assert (len(answer.token_ids), answer.finish_reason) == (1, "length")

    @pytest.mark.parametrize("length", [16, 17, 40])
    @pytest.mark.parametrize("max_tokens", [None, 1, 100])
    def test_too_long_names_both_numbers(self, entry: Entry, length: int, max_tokens: int | None) -> None:
        with pytest.raises(ValueError, match=rf"prompt has {length} tokens.*max_model_len=16"):
            entry(scripted_llm(max_model_len=16), length, SamplingParams(max_tokens=max_tokens))

    def test_more_than_fits_ends_by_length(self, entry: Entry) -> None:
        answer = entry(scripted_llm(max_model_len=16), 10, SamplingParams(max_tokens=100)).outputs[0]
        assert (len(answer.token_ids), answer.finish_reason) == (6, "length")


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_no_tokens_is_an_error_about_max_tokens(max_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"max_tokens must be at least 1, or None, got {max_tokens}"):
        SamplingParams(max_tokens=max_tokens)
