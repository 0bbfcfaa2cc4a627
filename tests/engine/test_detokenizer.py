"""Tokens to text: whole characters only, and stop strings wherever the token borders lie."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from nbengine.engine.detokenizer import BROKEN, Detokenizer, Tokenizer, first_stop, prompt_context
from nbengine.sampling_params import SamplingParams
from tests.scripted import ByteTokenizer, SlowTokenizer

FAST, SLOW = ByteTokenizer(), SlowTokenizer()
TRICKY = "ďábel 🔥 中文 👩‍👩‍👧"


def _spelt(byte: int) -> str:
    return chr(byte) if byte < 128 else f"<0x{byte:02X}>"


class ByteFallbackTokenizer(SlowTokenizer):
    """ASCII as it is, other bytes as SentencePiece models spell them, <0xC3>: runs of bytes are decoded together."""

    def __init__(self) -> None:
        super().__init__()
        self.backend_tokenizer = FastTokenizer(models.BPE({_spelt(byte): byte for byte in range(256)}, []))
        self.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])

    def decode(self, token_ids: object, *, skip_special_tokens: bool = False) -> str:
        return self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


def stream(tokenizer: Tokenizer, token_ids: list[int], params: SamplingParams, prompt: list[int] | None = None) -> list[str]:
    """What is shown after each token, and at the end."""
    detokenizer = Detokenizer(tokenizer, prompt or [], params)
    shown = []
    for token_id in token_ids:
        stop = detokenizer.push(token_id)
        shown.append(detokenizer.text[: detokenizer.shown(stop is not None)])
        if stop is not None:
            return shown
    detokenizer.flush()
    return [*shown, detokenizer.text[: detokenizer.shown(True)]]


@pytest.mark.parametrize("tokenizer", [FAST, SLOW, ByteFallbackTokenizer()], ids=["fast", "slow", "byte fallback"])
class TestWholeCharacters:
    def test_half_a_character_is_never_shown(self, tokenizer: Tokenizer) -> None:
        shown = stream(tokenizer, list(TRICKY.encode()), SamplingParams())
        assert not any(BROKEN in text for text in shown)
        assert shown[-1] == TRICKY

    def test_what_is_shown_only_grows(self, tokenizer: Tokenizer) -> None:
        shown = stream(tokenizer, list(TRICKY.encode()), SamplingParams())
        assert all(later.startswith(earlier) for earlier, later in pairwise(shown))
        assert len(set(shown)) == len(TRICKY) + 1  # a character at a time, and "" before the first is whole

    def test_a_character_cut_off_shows_as_one_replacement_at_the_end(self, tokenizer: Tokenizer) -> None:
        shown = stream(tokenizer, list("ab🔥".encode())[:4], SamplingParams())
        assert shown[:-1] == ["a", "ab", "ab", "ab"]
        assert shown[-1] in ("ab" + BROKEN, "ab" + 2 * BROKEN)  # byte-fallback decoders put one a byte

    def test_a_prompt_that_ends_in_a_character_s_middle_harms_nothing(self, tokenizer: Tokenizer) -> None:
        shown = stream(tokenizer, list(b"\xa5 ok"), SamplingParams(), prompt=list("🔥".encode())[:3])
        assert shown[-1].endswith(" ok")


@given(st.text(max_size=20), st.binary(max_size=8), st.text(max_size=8), st.sampled_from([FAST, SLOW]))
def test_the_text_is_what_the_tokenizer_decodes_at_once(before: str, noise: bytes, after: str, tokenizer: Tokenizer) -> None:
    token_ids = list(before.encode() + noise + after.encode())
    shown = stream(tokenizer, token_ids, SamplingParams(), prompt=list(b"prompt"))
    assert shown[-1] == tokenizer.decode(token_ids)
    assert all(later.startswith(earlier) for earlier, later in pairwise(shown))


def test_special_tokens_are_skipped_or_shown_as_asked() -> None:
    assert stream(FAST, [*b"a", 258, *b"b"], SamplingParams())[-1] == "ab"
    assert stream(FAST, [*b"a", 258, *b"b"], SamplingParams(skip_special_tokens=False))[-1] == "a<a>b"


def test_the_first_token_is_spaced_as_its_place_asks() -> None:
    words = FastTokenizer(models.WordLevel({"▁The": 0, "▁end": 1}, unk_token="▁The"))
    words.decoder = decoders.Metaspace()
    tokenizer = SlowTokenizer()
    tokenizer.backend_tokenizer = words  # type: ignore[attr-defined]
    assert words.decode([1]) == "end"  # alone the space would be lost
    assert stream(tokenizer, [1], SamplingParams(), prompt=[0])[-1] == " end"


def test_the_context_is_a_few_tokens_and_never_half_a_character() -> None:
    assert prompt_context(FAST, list(b"0123456789")) == list(b"456789")
    assert prompt_context(FAST, list("x🔥🔥".encode())) == list("🔥🔥".encode())
    assert prompt_context(FAST, list("🔥".encode())[:2]) == []
    assert prompt_context(FAST, []) == []


class TestStopStrings:
    def test_it_ends_the_text_before_it_or_with_it(self) -> None:
        assert stream(FAST, list(b"one STOP two"), SamplingParams(stop=["STOP"]))[-1] == "one "
        kept = SamplingParams(stop=["STOP"], include_stop_str_in_output=True)
        assert stream(FAST, list(b"one STOP two"), kept)[-1] == "one STOP"

    def test_what_may_become_one_is_held_back_and_nothing_more(self) -> None:
        shown = stream(FAST, list(b"aSTaSTOP"), SamplingParams(stop=["STOP"]))
        assert shown == ["a", "a", "a", "aSTa", "aSTa", "aSTa", "aSTa", "aSTa"]

    def test_held_text_comes_out_at_the_end(self) -> None:
        assert stream(FAST, list(b"aST"), SamplingParams(stop=["STOP"]))[-1] == "aST"

    def test_the_one_that_is_complete_first_wins(self) -> None:
        assert first_stop("xabcd", ["abcd", "bc"], 0) == (2, 4, "bc")
        assert first_stop("xabc", ["c", "abc"], 0) == (1, 4, "abc")  # the longest of those that end together

    @given(
        st.text("abc", max_size=12),
        st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
        st.lists(st.integers(1, 4), max_size=12),
        st.booleans(),
    )
    def test_the_token_borders_make_no_difference(self, text: str, stops: list[str], cuts: list[int], keep: bool) -> None:
        params = SamplingParams(stop=stops, include_stop_str_in_output=keep)
        pieces, rest = [], text
        for cut in cuts:
            pieces.append(rest[:cut])
            rest = rest[cut:]
        pieces = sorted({piece for piece in [*pieces, rest] if piece})
        tokenizer = ByteTokenizer(pieces=[piece for piece in pieces if len(piece) > 1])
        token_ids, rest = [], text
        for cut in [*cuts, len(text)]:
            piece, rest = rest[:cut], rest[cut:]
            if piece:
                token_ids.append(260 + [p for p in pieces if len(p) > 1].index(piece) if len(piece) > 1 else ord(piece))
        assert stream(tokenizer, token_ids, params)[-1] == stream(FAST, list(text.encode()), params)[-1]

    def test_nothing_stops_before_min_tokens(self) -> None:
        assert stream(FAST, list(b"a.b.c.d"), SamplingParams(stop=["."], min_tokens=3))[-1] == "a.b"
        assert stream(FAST, list(b"a.b.c.d"), SamplingParams(stop=["."], min_tokens=2))[-1] == "a"  # at the 2nd: enough


def test_without_text_nothing_is_decoded() -> None:
    assert stream(FAST, list(b"abc"), SamplingParams(detokenize=False))[-1] == ""
