"""Whatever crosses between front and core, or scheduler and executor, survives msgpack unchanged."""

from __future__ import annotations

import inspect
from types import ModuleType

import msgspec
import pytest

from nbengine import outputs, plan, protocol
from nbengine.engine.core_client import Queues
from nbengine.engine.limits import EngineLimits
from nbengine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from nbengine.plan import BatchTensors, CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput
from nbengine.protocol import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    PrefixCacheStats,
    SampledLogprobs,
    SchedulerStats,
)
from nbengine.sampling_params import RepetitionDetection, RequestOutputKind, SamplingParams

PARAMS = SamplingParams(
    n=2,
    temperature=0.5,
    top_k=3,
    seed=2**48,
    max_tokens=None,
    stop=["\n", "é"],
    stop_token_ids=[7],
    logprobs=2,
    logit_bias={3: -1.5},
    allowed_token_ids=[1, 2],
    output_kind=RequestOutputKind.DELTA,
    repetition_detection=RepetitionDetection(max_pattern_size=4),
    extra_args={"x": [1, "y"]},
)
PREFIX = PrefixCacheStats(1, 2, 3, 4, 5, 6, True)
STATS = SchedulerStats(1, 2, 0.5, 3, PREFIX)
LOGPROBS = SampledLogprobs([5, 6], [-0.5, -1.25], 1)
OUTPUT = EngineCoreOutput(
    request_id="a",
    new_token_ids=[5],
    new_logprobs=[LOGPROBS],
    finish_reason=FinishReason.STOP,
    stop_reason="é",
    num_cached_tokens=16,
    error="no",
)
NEW = NewRequestData(
    request_id="a",
    token_ids=[1, 2, 3],
    num_prompt_tokens=2,
    sampling_params=PARAMS,
    block_ids=[4],
    num_computed_tokens=1,
    eos_token_id=2,
)
CACHED = CachedRequestData(["b"], [None], [4])
COMPLETION = CompletionOutput(index=0, text="é", token_ids=[5], logprobs=[{5: Logprob(-0.5, 1, "é")}], finish_reason="stop")

MESSAGES: list[msgspec.Struct] = [
    EngineCoreRequest(request_id="a", prompt_token_ids=[1, 2], sampling_params=PARAMS, arrival_time=0.5, cache_salt="s"),
    EngineCoreRequest(request_id="b", prompt_token_ids=[1], sampling_params=SamplingParams(), arrival_time=0.0),
    LOGPROBS,
    PREFIX,
    STATS,
    OUTPUT,
    EngineCoreOutputs(step=3, timestamp=1.5, outputs=[OUTPUT], stats=STATS),
    EngineCoreOutputs(step=0, timestamp=0.0),
    NEW,
    CACHED,
    SchedulerOutput(
        step=1,
        scheduled_new_reqs=[NEW],
        scheduled_resumed_reqs=[],
        scheduled_cached_reqs=CACHED,
        num_scheduled_tokens={"b": 1, "a": 2},
        total_num_scheduled_tokens=3,
        preempted_req_ids=["c"],
        finished_req_ids=["d"],
    ),
    ModelRunnerOutput(request_ids=["a"], sampled_token_ids=[[5]], logprobs=[[LOGPROBS]], prompt_logprobs={"a": [LOGPROBS]}),
    BatchTensors(token_ids=b"\0" * 4, positions=b"", slot_mapping=b"", query_start_loc=b"", seq_lens=b""),
    Queues(["a"], ["b"]),
    EngineLimits(max_model_len=16, block_size=4, usable_blocks=3, max_logprobs=20),
    Logprob(-0.5, 1, "é"),
    COMPLETION,
    RequestMetrics(arrival_time=1.0, first_token_time=2.0),
    RequestOutput(request_id="a", prompt=None, prompt_token_ids=[1], outputs=[COMPLETION], finished=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_from_msgpack_as_it_went(message: msgspec.Struct) -> None:
    kind = type(message)
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)
    assert back == message
    assert type(back) is kind


def test_the_order_of_the_batch_survives() -> None:
    batch = next(message for message in MESSAGES if isinstance(message, SchedulerOutput))
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=SchedulerOutput)
    assert list(back.num_scheduled_tokens) == ["b", "a"]


@pytest.mark.parametrize("module", [protocol, plan, outputs])
def test_no_message_is_left_out_here(module: ModuleType) -> None:
    defined = {kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__}
    structs = {kind for kind in defined if issubclass(kind, msgspec.Struct)}
    assert structs <= {type(message) for message in MESSAGES}
