"""What is known of a model before its weights are loaded."""

from __future__ import annotations

from typing import Any

import msgspec


class ModelFacts(msgspec.Struct, kw_only=True, frozen=True):
    """max_len: the longest sequence that the model was made for, in tokens. vocab_size: its ids are 0 … vocab_size - 1.

    eos_token_ids: tokens that end an answer, the main one first. sampling_defaults: SamplingParams that its makers
    recommend.
    """

    max_len: int
    vocab_size: int
    eos_token_ids: list[int] = []
    sampling_defaults: dict[str, Any] = {}
