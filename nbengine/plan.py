"""The plan of one step and its result: what the scheduler hands to the executor, and what comes back.

Both the scheduler and the worker below it speak this, so it stands on the ground floor.
"""

from __future__ import annotations

import msgspec

from nbengine.protocol import SampledLogprobs
from nbengine.sampling_params import SamplingParams


class NewRequestData(msgspec.Struct, kw_only=True):
    """A request that the executor does not know (new), or whose state it dropped (resumed after preemption).

    token_ids: prompt, plus what was generated before a preemption. block_ids: its whole block table.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    block_ids: list[int]
    num_computed_tokens: int
    eos_token_id: int | None = None
    lora_id: int = 0


class CachedRequestData(msgspec.Struct):
    """Running requests that the executor knows already, as columns of equal length.

    new_block_ids[i]: blocks added to the end of the request's table in this step, None if none (the common case).
    next_token_ids[i]: the request's token at position num_computed_tokens[i], the first one that this step computes: for a
        decoding request the one that it sampled last. The scheduler's word is final (someone may have edited it). Empty:
        the executor goes by its own copy.
    """

    request_ids: list[str]
    new_block_ids: list[list[int] | None]
    num_computed_tokens: list[int]
    next_token_ids: list[int] = []


class SchedulerOutput(msgspec.Struct, kw_only=True):
    """The plan of one step. num_scheduled_tokens is in batch order: running requests first, then admitted ones."""

    step: int
    scheduled_new_reqs: list[NewRequestData]
    scheduled_resumed_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    preempted_req_ids: list[str]
    finished_req_ids: list[str]  # ended since the last plan: the executor drops them
    num_common_prefix_blocks: int = 0
    scheduled_spec_decode_tokens: dict[str, list[int]] = {}


class ModelRunnerOutput(msgspec.Struct, kw_only=True):
    """What the model made of a plan. Columns in the plan's batch order.

    sampled_token_ids[i] is empty for a prefill chunk that does not reach the end of its request.
    Times are seconds, as the executor measured them.
    """

    request_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: list[list[SampledLogprobs] | None] | None = None
    prompt_logprobs: dict[str, list[SampledLogprobs]] = {}
    prepare_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0


class BatchTensors(msgspec.Struct, kw_only=True):
    """The tensors of the step that just ran, flat over the batch (T tokens, R requests), as little-endian int32 bytes.

    top_token_ids, top_probs: R rows of K alternatives for the sampled position (K = 0 if the executor keeps none);
    rows of prefill chunks that sampled nothing are filled with -1 and 0.
    """

    token_ids: bytes  # (T,)
    positions: bytes  # (T,)
    slot_mapping: bytes  # (T,)
    query_start_loc: bytes  # (R + 1,)
    seq_lens: bytes  # (R,)
    num_alternatives: int = 0
    top_token_ids: bytes = b""  # (R, K) int32
    top_probs: bytes = b""  # (R, K) float32
