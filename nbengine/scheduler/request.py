"""A request as the scheduler sees it: its tokens, how far they are computed, and the KV blocks that hold them."""

from __future__ import annotations

from enum import StrEnum

from nbengine.kv_cache.manager import NEVER
from nbengine.protocol import EngineCoreRequest, FinishReason, SampledLogprobs


class RequestStatus(StrEnum):
    WAITING = "waiting"  # new, in the waiting queue
    RUNNING = "running"  # holds blocks; gets tokens whenever the step has room
    PREEMPTED = "preempted"  # lost its blocks, in the waiting queue; keeps its tokens
    FINISHED = "finished"


class Request:
    """One live request. Mutable, and read in every step, hence slots and no properties on the hot path.

    token_ids: prompt, then what was generated. num_computed_tokens: how many of them have (or, from `schedule` on, will
    have after this step) keys and values in the blocks. In steady decode it is one less than len(token_ids).
    ending_ids: tokens that end the request once min_tokens are there. max_total, min_total: limits of len(token_ids).
    is_prefill_chunk: its last scheduled tokens did not reach its end, so it sampled nothing.
    num_cached_tokens: tokens found in the prefix cache at its last admission.
    prompt_logprobs: of the prompt's tokens from 1 on, as far as they are computed; empty if nobody asked.
    """

    __slots__ = (
        "arrival_time",
        "block_hashes",
        "block_ids",
        "cache_salt",
        "ending_ids",
        "eos_token_id",
        "finish_reason",
        "is_prefill_chunk",
        "lora_id",
        "lora_name",
        "max_total",
        "min_total",
        "next_full",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_slots",
        "priority",
        "prompt_logprobs",
        "repetition",
        "request_id",
        "sampling_params",
        "status",
        "stop_reason",
        "token_ids",
    )

    def __init__(self, core: EngineCoreRequest, max_model_len: int) -> None:
        params = core.sampling_params
        self.request_id = core.request_id
        self.sampling_params = params
        self.arrival_time = core.arrival_time
        self.priority = core.priority
        self.eos_token_id = core.eos_token_id
        self.cache_salt = core.cache_salt
        self.lora_id = core.lora_id
        self.lora_name = core.lora_name

        self.token_ids = list(core.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.is_prefill_chunk = True
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[SampledLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_slots = 0
        self.next_full = NEVER

        eos = () if core.eos_token_id is None or params.ignore_eos else (core.eos_token_id,)
        self.ending_ids = frozenset((*params.stop_token_ids, *eos))
        self.repetition = params.repetition_detection
        self.min_total = self.num_prompt_tokens + params.min_tokens
        self.max_total = max_model_len
        if params.max_tokens is not None:
            self.max_total = min(max_model_len, self.num_prompt_tokens + params.max_tokens)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens, a copy."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def max_tokens(self) -> int:
        """Tokens that it may generate, as far as max_model_len allows."""
        return self.max_total - self.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status}, {self.num_computed_tokens}/{len(self.token_ids)} tokens computed, "
            f"{len(self.block_ids)} blocks)"
        )
