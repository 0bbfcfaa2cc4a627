"""The messages that cross between the front (text) and the core (tokens). Plain msgspec Structs: each survives msgpack."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from nbengine.sampling_params import SamplingParams


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


class EngineCoreRequest(msgspec.Struct, kw_only=True):
    """One request as the core sees it: tokens, never text.

    sampling_params is complete: max_tokens is a number, seed is set unless the request is greedy, n is 1.
    eos_token_id: the token that ends this request, None if none does.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float
    eos_token_id: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    lora_id: int = 0  # 0 = no adapter
    lora_name: str | None = None


class SampledLogprobs(msgspec.Struct, array_like=True):
    """For one sampled position: token ids (the chosen one first, then the likeliest), their log probabilities, and the
    rank of the chosen token (1 = likeliest, 0 = unknown: it was chosen by hand)."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class PrefixCacheStats(msgspec.Struct):
    """Look-ups since the last update: requests looked up, tokens asked for, tokens found; and the same for requests that
    had been preempted, which would otherwise look like hits."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    reset: bool = False


class SchedulerStats(msgspec.Struct):
    """The scheduler's gauges after one step."""

    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float  # 0 … 1
    num_preemptions: int  # in this step
    prefix_cache: PrefixCacheStats


class EngineCoreOutput(msgspec.Struct, kw_only=True):
    """What one step did for one request."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: list[SampledLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None  # with the first output only
    prompt_logprobs: list[SampledLogprobs] | None = None  # with the first output only: of the prompt's tokens from 1 on
    error: str | None = None


class EngineCoreOutputs(msgspec.Struct, kw_only=True):
    """What one step did. `step` counts from 0. timestamp: when, by the engine's clock; the core writes it."""

    step: int
    timestamp: float = 0.0
    outputs: list[EngineCoreOutput] = []
    stats: SchedulerStats | None = None
