"""What a request asks of the sampler and of the output: vLLM's SamplingParams, names and defaults kept."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec

from nbengine.errors import InvalidParameterError
from nbengine.fields import check_types

MAX_N = 16_384  # answers a request; each is a request of the core's

_WHOLE = ("n", "top_k", "min_tokens", "seed", "max_tokens", "logprobs", "prompt_logprobs")
_REAL = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
_LISTS = ("stop", "stop_token_ids", "bad_words", "bad_words_token_ids")


class RequestOutputKind(StrEnum):
    """What each RequestOutput of a stream holds."""

    CUMULATIVE = "cumulative"  # everything generated so far
    DELTA = "delta"  # only what is new since the last output
    FINAL_ONLY = "final_only"  # one output, when the request has finished


class RepetitionDetection(msgspec.Struct, kw_only=True, frozen=True):
    """End a request whose tail is one pattern repeated `min_count` times."""

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.min_pattern_size <= self.max_pattern_size or self.min_count < 2:
            raise InvalidParameterError(
                "repetition_detection needs 0 <= min_pattern_size <= max_pattern_size and min_count of at least 2, got "
                f"{self.min_pattern_size}, {self.max_pattern_size} and {self.min_count}."
            )


class SamplingParams(msgspec.Struct, kw_only=True, dict=False):
    """How to choose tokens and when to stop. Raises InvalidParameterError for a value out of range.

    temperature: 0 is greedy. top_p, top_k (0 = off), min_p: cut the distribution.
    seed: the same seed draws the same random numbers alone, in any batch and after preemption: the number for output
        token i is a function of (seed, i) alone. With n > 1, child i uses seed + i.
    max_tokens: None means as many as fit max_model_len. A larger number than fits is kept, and length ends the request.
    logprobs: None is off; k adds the k likeliest tokens' log probabilities beside the chosen one's.
    prompt_logprobs: the same for the tokens of the prompt. Such a request does not read the prefix cache: what is found
        there is not computed.
    bad_words: strings whose tokens are never put out in this order, with or without a space before them.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    bad_words_token_ids: list[list[int]] = []  # filled by the front from bad_words: the core knows tokens only
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool = False
    repetition_detection: RepetitionDetection | None = None
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in _WHOLE + _REAL:
            if hasattr(value := getattr(self, name), "tolist"):  # a number of numpy's or torch's
                setattr(self, name, value.tolist())
        for name in ("stop", "bad_words"):
            if isinstance(value := getattr(self, name), str):  # a lone string will do
                setattr(self, name, [value])
        for name in _LISTS:
            setattr(self, name, [] if getattr(self, name) is None else getattr(self, name))
        self._check_numbers()
        check_types(self, _OTHERS, InvalidParameterError)
        self._check_contents()

    def _check_numbers(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
                raise InvalidParameterError(f"{name} must be a whole number (of 64 bits), got {value!r}.")
        self.top_k = 0 if self.top_k == -1 else self.top_k  # vLLM takes both for off
        for name in _REAL:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise InvalidParameterError(f"{name} must be a finite number, got {value!r}.")
        limits: list[tuple[str, bool, str]] = [
            ("n", 1 <= self.n <= MAX_N, f"between 1 and {MAX_N}"),
            ("temperature", self.temperature >= 0, "0 (greedy) or more"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2]"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2]"),
            ("repetition_penalty", self.repetition_penalty > 0, "more than 0"),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1, or None"),
            ("min_tokens", self.min_tokens >= 0, "0 or more"),
            ("logprobs", self.logprobs is None or self.logprobs >= 0, "0 or more, or None"),
            ("prompt_logprobs", self.prompt_logprobs is None or self.prompt_logprobs >= 0, "0 or more, or None"),
        ]
        for name, holds, wanted in limits:
            if not holds:
                raise InvalidParameterError(f"{name} must be {wanted}, got {getattr(self, name)}.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(f"min_tokens must not exceed max_tokens={self.max_tokens}, got {self.min_tokens}.")

    def _check_contents(self) -> None:
        for name, words in (("stop", self.stop), ("bad_words", self.bad_words)):
            if not all(words):
                raise InvalidParameterError(f"{name} must hold non-empty strings, got {words!r}.")
        if not all(map(math.isfinite, (self.logit_bias or {}).values())):
            raise InvalidParameterError(f"logit_bias must hold finite numbers, got {self.logit_bias!r}.")
        if self.stop and not self.detokenize:
            raise InvalidParameterError(
                "stop strings need text, but detokenize=False: use stop_token_ids, or leave detokenize on."
            )

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    def clone(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, checked again."""
        return msgspec.structs.replace(self, **changes)


_OTHERS = [name for name in SamplingParams.__struct_fields__ if name not in _WHOLE + _REAL]
