"""What is taken as a prompt, what is filled in, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbengine.engine.input_processor import InputProcessor
from nbengine.engine.limits import EngineLimits
from nbengine.errors import InvalidParameterError, InvalidRequestError
from nbengine.protocol import EngineCoreRequest
from nbengine.sampling_params import SamplingParams
from tests.scripted import EOS, ByteTokenizer

LIMITS = EngineLimits(
    max_model_len=16,
    block_size=4,
    usable_blocks=8,
    max_logprobs=5,
    vocab_size=260,
    eos_token_id=EOS,
    more_eos_token_ids=[258],
)


def processor(limits: EngineLimits = LIMITS, *, tokenizer: ByteTokenizer | None = None, seed: int = 0) -> InputProcessor:
    return InputProcessor(limits, tokenizer or ByteTokenizer(), seed)


def process(prompt: Any, params: SamplingParams | None = None, **options: Any) -> EngineCoreRequest:
    return processor().process("a", prompt, params or SamplingParams(), **options)[0]


class TestPrompts:
    @pytest.mark.parametrize(
        "prompt",
        ["abc", {"prompt": "abc"}, [97, 98, 99], (97, 98, 99), np.array([97, 98, 99]), {"prompt_token_ids": [97, 98, 99]}],
        ids=["text", "text dict", "list", "tuple", "array", "ids dict"],
    )
    def test_all_kinds_come_to_the_same_tokens(self, prompt: Any) -> None:
        request = process(prompt)
        assert request.prompt_token_ids == [97, 98, 99]
        assert all(type(token_id) is int for token_id in request.prompt_token_ids)

    def test_the_text_is_kept_where_it_is_known(self) -> None:
        assert processor().process("a", {"prompt": "x", "prompt_token_ids": [97]}, SamplingParams())[1] == "x"
        assert processor().process("a", [97], SamplingParams())[1] is None

    def test_a_list_that_was_given_is_not_shared(self) -> None:
        ids = [97]
        request = process(ids)
        ids.append(98)
        assert request.prompt_token_ids == [97]

    def test_a_salt_goes_with_the_prompt(self) -> None:
        assert process({"prompt": "x", "cache_salt": "me"}).cache_salt == "me"

    @pytest.mark.parametrize(
        ("prompt", "words"),
        [
            ("", "empty"),
            ([], "empty"),
            ({"prompt_token_ids": []}, "empty"),
            ({}, "needs"),
            ({"prompt": 3}, "is text"),
            ({"prompt": "a", "promt": "b"}, "promt"),
            ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
            ({"prompt_token_ids": "abc"}, "whole numbers"),
            ([1.5], "whole number, got 1.5"),
            ([True], "whole number, got True"),
            (["a"], "whole number, got 'a'"),
            (b"abc", "bytes"),
            (None, "NoneType"),
            ([-1], "-1.*0 … 259"),
            ([97, 260], "260.*0 … 259"),
        ],
    )
    def test_others_are_refused(self, prompt: Any, words: str) -> None:
        with pytest.raises(InvalidRequestError, match=words):
            process(prompt)

    def test_text_without_a_tokenizer_is_refused(self) -> None:
        blind = InputProcessor(LIMITS, None, 0)
        with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
            blind.process("a", "abc", SamplingParams())
        request, _ = blind.process("a", [97], SamplingParams())
        assert not request.sampling_params.detokenize

    def test_a_priority_is_a_whole_number(self) -> None:
        assert process("a", priority=-3).priority == -3
        with pytest.raises(InvalidRequestError, match="priority"):
            process("a", priority=1.5)
        with pytest.raises(InvalidRequestError, match="priority must fit 64 bits"):
            process("a", priority=2**70)

    @pytest.mark.parametrize("request_id", [5, "", None])
    def test_an_id_is_text(self, request_id: Any) -> None:
        with pytest.raises(InvalidRequestError, match="non-empty string"):
            processor().process(request_id, "a", SamplingParams())

    @pytest.mark.parametrize("arrival_time", ["now", float("nan"), True])
    def test_an_arrival_time_is_a_number(self, arrival_time: Any) -> None:
        with pytest.raises(InvalidRequestError, match="arrival_time"):
            processor().process("a", "a", SamplingParams(), arrival_time=arrival_time)


class TestLength:
    def test_one_token_must_have_room(self) -> None:
        assert process("x" * 15).sampling_params.max_tokens == 16
        with pytest.raises(InvalidRequestError, match=r"16 tokens.*prompt \+ 1 > max.*max_model_len=16"):
            process("x" * 16)

    def test_what_does_not_fit_the_pool_is_told_in_blocks(self) -> None:
        with pytest.raises(InvalidRequestError, match="need 10 KV blocks of 4 tokens, and 8 are available"):
            process("x" * 40)


class TestParameters:
    def test_the_caller_s_params_stay_as_they_are(self) -> None:
        params = SamplingParams(max_tokens=None)
        before = params.clone()
        assert process("abc", params).sampling_params is not params
        assert params == before

    def test_max_tokens_none_is_what_fits(self) -> None:
        assert process("abc", SamplingParams(max_tokens=None)).sampling_params.max_tokens == 13
        assert process("abc", SamplingParams(max_tokens=100)).sampling_params.max_tokens == 100  # length ends it

    def test_a_seed_is_drawn_for_those_who_sample(self) -> None:
        one, other = processor(seed=1), processor(seed=1)
        draws = [one.process("a", "x", SamplingParams())[0].sampling_params.seed for _ in range(3)]
        assert draws == [other.process("a", "x", SamplingParams())[0].sampling_params.seed for _ in range(3)]
        assert len(set(draws)) == 3
        assert process("x", SamplingParams(temperature=0)).sampling_params.seed is None
        assert process("x", SamplingParams(seed=7)).sampling_params.seed == 7

    def test_the_ends_of_the_model_are_filled_in(self) -> None:
        request = process("x", SamplingParams(stop_token_ids=[65]))
        assert request.eos_token_id == EOS
        assert request.sampling_params.stop_token_ids == [65, 258]
        assert process("x", SamplingParams(ignore_eos=True)).sampling_params.stop_token_ids == []

    @pytest.mark.parametrize(
        ("params", "words"),
        [
            (SamplingParams(logprobs=6), "max_logprobs=5, got 6"),
            (SamplingParams(stop_token_ids=[-1]), "stop_token_ids.*-1"),
            (SamplingParams(stop_token_ids=[260]), "stop_token_ids.*260"),
            (SamplingParams(logit_bias={10**9: 1.0}), "logit_bias.*1000000000"),
            (SamplingParams(allowed_token_ids=[300]), "allowed_token_ids.*300"),
            (SamplingParams(allowed_token_ids=[]), "must not be empty"),
            (SamplingParams(prompt_logprobs=6), "prompt_logprobs.*max_logprobs=5, got 6"),
            (SamplingParams(bad_words_token_ids=[[1], [2, 260]]), "bad_words_token_ids.*260"),
            ({"temperature": 0}, "must be SamplingParams, got dict"),
        ],
    )
    def test_what_does_not_suit_the_engine_is_refused(self, params: Any, words: str) -> None:
        with pytest.raises(InvalidParameterError, match=words):
            process("x", params)

    @pytest.mark.parametrize(
        ("params", "instead"),
        [(SamplingParams(stop=["x"]), "stop_token_ids"), (SamplingParams(bad_words=["x"]), "bad_words_token_ids")],
    )
    def test_strings_need_a_tokenizer(self, params: SamplingParams, instead: str) -> None:
        with pytest.raises(InvalidParameterError, match=instead):
            InputProcessor(LIMITS, None, 0).process("a", [1], params)

    @pytest.mark.parametrize(
        ("word", "spellings"),
        [("ab", ["ab", " ab"]), (" ab", [" ab", "ab"]), ("\n", ["\n"]), ("\nab", ["\nab", "ab", " ab"])],
    )
    def test_bad_words_are_spelt_with_and_without_a_space(self, word: str, spellings: list[str]) -> None:
        params = process("x", SamplingParams(bad_words=[word], bad_words_token_ids=[[7]])).sampling_params
        assert params.bad_words_token_ids == [[7], *(list(spelling.encode()) for spelling in spellings)]

    def test_prompt_logprobs_are_computed_and_not_looked_up(self) -> None:
        assert process("x", SamplingParams(prompt_logprobs=0)).sampling_params.skip_reading_prefix_cache
        assert not process("x", SamplingParams(logprobs=0)).sampling_params.skip_reading_prefix_cache


class TestChat:
    MESSAGES = [{"role": "user", "content": "hi"}]

    def test_messages_go_through_the_template(self) -> None:
        parsed = processor().parse_chat(self.MESSAGES, {"add_generation_prompt": True})
        assert parsed.text == "[user] hi\n[assistant] "
        assert bytes(parsed.token_ids).decode() == parsed.text

    def test_the_template_writes_the_special_tokens_itself(self) -> None:
        with_bos = processor(tokenizer=ByteTokenizer(adds_bos=True))
        assert with_bos.parse("hi").token_ids[0] == EOS + 1
        assert with_bos.parse_chat(self.MESSAGES, {}).token_ids[0] == ord("[")

    @pytest.mark.parametrize("messages", [[], [{"content": "x"}], ["x"]])
    def test_what_is_no_conversation_is_refused(self, messages: Any) -> None:
        with pytest.raises(InvalidRequestError, match="message"):
            processor().parse_chat(messages, {})

    def test_a_model_without_a_template_says_so(self) -> None:
        tokenizer = ByteTokenizer()
        tokenizer.chat_template = None
        with pytest.raises(InvalidRequestError, match="no chat template"):
            processor(tokenizer=tokenizer).parse_chat(self.MESSAGES, {})

    def test_text_parts_are_joined(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert processor().parse_chat([{"role": "user", "content": parts}], {}).text == "[user] a\nb\n"
        with pytest.raises(InvalidRequestError, match="part of a message"):
            processor().parse_chat([{"role": "user", "content": [{"type": "image"}]}], {})

    def test_what_the_template_cannot_render_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"cannot render.*content"):
            processor().parse_chat([{"role": "user"}], {})


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cannot read this text"):
        process("a\ud800b")
