"""R064: characters that are split over tokens are streamed whole. One cut off by max_tokens shows as one U+FFFD, in the
stream as in the final text; an invalid byte in the middle is one U+FFFD and the text behind it is intact."""

from __future__ import annotations

from typing import Any

import pytest

from nbengine import SamplingParams
from nbengine.sampling_params import RequestOutputKind
from tests.scripted import ByteTokenizer, SlowTokenizer, scripted_llm

TEXT = "ďábel 🔥 中文 👩‍👩‍👧"


def run(output: bytes, max_tokens: int, tokenizer: Any) -> tuple[list[str], str]:
    """The deltas, and the final text."""
    results = []
    for kind in (RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY):
        engine = scripted_llm({"a": list(output)}, executor={"make_tokenizer": tokenizer}).llm_engine
        engine.add_request("a", "x", SamplingParams(temperature=0, max_tokens=max_tokens, output_kind=kind))
        texts = []
        while engine.has_unfinished_requests():
            texts += [each.outputs[0].text for each in engine.step()]
        results.append(texts)
    return results[0], results[1][0]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer, SlowTokenizer])
class TestSplitCharacters:
    def test_whole(self, tokenizer: Any) -> None:
        deltas, final = run(TEXT.encode(), 60, tokenizer)
        assert "".join(deltas) == final == TEXT
        assert not any("\ufffd" in delta for delta in deltas)
        assert max(len(delta) for delta in deltas) == 1  # one code point at a time

    def test_cut_by_max_tokens(self, tokenizer: Any) -> None:
        deltas, final = run(TEXT.encode(), len("ďábel ".encode()) + 2, tokenizer)
        assert "".join(deltas) == final == "ďábel \ufffd"

    def test_an_invalid_byte(self, tokenizer: Any) -> None:
        deltas, final = run(b"one \xff two", 60, tokenizer)
        assert "".join(deltas) == final == "one \ufffd two"
