"""SamplingParams: what is taken, and what is refused before any engine sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nbengine import RequestOutputKind, SamplingParams
from nbengine.errors import InvalidParameterError
from nbengine.sampling_params import RepetitionDetection


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"stop": "end"}, ["end"]),
        ({"stop": None}, []),
        ({"stop": ("a", "b")}, ["a", "b"]),
        ({"bad_words": "x"}, ["x"]),
        ({"bad_words": None}, []),
        ({"stop_token_ids": np.array([3, 4])}, [3, 4]),
        ({"allowed_token_ids": torch.tensor([3, 4])}, [3, 4]),
        ({"logit_bias": {"5": 1}}, {5: 1.0}),
        ({"seed": np.int64(7)}, 7),
        ({"temperature": np.float32(0.5)}, 0.5),
        ({"top_k": -1}, 0),
        ({"output_kind": "delta"}, RequestOutputKind.DELTA),
        ({"repetition_detection": {"max_pattern_size": 3}}, RepetitionDetection(max_pattern_size=3)),
    ],
)
def test_other_spellings_of_a_value_are_taken(given: dict[str, Any], kept: Any) -> None:
    (name,) = given
    value = getattr(SamplingParams(**given), name)
    assert value == kept and type(value) is type(kept)


@pytest.mark.parametrize(
    "given",
    [
        {"stop": [1]},
        {"stop": 5},
        {"stop": ""},
        {"bad_words": [""]},
        {"bad_words": [None]},
        {"bad_words_token_ids": [1]},
        {"stop_token_ids": 5},
        {"stop_token_ids": [True]},
        {"stop_token_ids": [1.0]},
        {"allowed_token_ids": "abc"},
        {"logit_bias": {"five": 1.0}},
        {"logit_bias": {5: "x"}},
        {"logit_bias": {5: float("nan")}},
        {"logit_bias": [1]},
        {"n": 0},
        {"n": 10**9},
        {"n": True},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 1.0},
        {"max_tokens": 10**30},
        {"min_tokens": None},
        {"min_tokens": 17},
        {"top_k": None},
        {"top_k": -2},
        {"top_p": 0},
        {"top_p": None},
        {"min_p": 2},
        {"temperature": None},
        {"temperature": float("inf")},
        {"temperature": -0.1},
        {"seed": 1.5},
        {"seed": 2**64},
        {"logprobs": -1},
        {"prompt_logprobs": True},
        {"repetition_penalty": 0},
        {"presence_penalty": 3},
        {"detokenize": "no"},
        {"ignore_eos": None},
        {"output_kind": "all"},
        {"extra_args": 5},
        {"repetition_detection": {"max_pattern_size": 0}},
        {"repetition_detection": {"max_pattern_size": 2, "min_count": 1}},
    ],
)
def test_wrong_values_are_refused_by_name(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InvalidParameterError, match=name):
        SamplingParams(**given)
