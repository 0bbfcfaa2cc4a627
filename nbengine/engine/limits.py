"""What the front must know of the core and its model in order to refuse a bad request by itself."""

from __future__ import annotations

import msgspec


class EngineLimits(msgspec.Struct, kw_only=True, frozen=True):
    """Fixed once the engine stands.

    max_model_len: tokens, after the KV cache has been made. usable_blocks: KV blocks that requests may own.
    vocab_size: token ids that the model knows; None if the executor cannot tell.
    more_eos_token_ids: further tokens that end a request, from the model's generation config.
    """

    max_model_len: int
    block_size: int
    usable_blocks: int
    max_logprobs: int
    vocab_size: int | None = None
    eos_token_id: int | None = None
    more_eos_token_ids: list[int] = []
