"""R062: stop strings without text (detokenize=False, or no tokenizer) are an error when asked for, never ignored."""

from __future__ import annotations

import pytest

from nbengine import SamplingParams
from nbengine.errors import InvalidParameterError
from tests.scripted import scripted_llm


def test_at_construction() -> None:
    with pytest.raises(ValueError, match="detokenize=False"):
        SamplingParams(stop=["x"], detokenize=False)


def test_when_added_to_an_engine_without_a_tokenizer() -> None:
    llm = scripted_llm(skip_tokenizer_init=True)
    with pytest.raises(InvalidParameterError, match="no tokenizer"):
        llm.generate([1, 2], SamplingParams(stop=["x"]), use_tqdm=False)
    assert llm.generate([1, 2], SamplingParams(stop_token_ids=[3]), use_tqdm=False)[0].finished
