"""The engine's options: what is taken, what is refused, and in which words."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from nbengine.config import EngineArgs
from nbengine.errors import ConfigError
from tests.scripted import scripted_llm


def build(**options: Any) -> None:
    EngineArgs.from_options(**options).create_engine_config(4096)


def test_the_defaults_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EngineArgs().create_engine_config(8192)


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "enforce_eager": True, "disable_log_stats": True},
        {"swap_space": 4, "kv_cache_dtype": "auto", "load_format": "safetensors", "gpu_memory_utilization": 0.9},
    ],
)
def test_options_of_vllm_s_that_change_nothing_are_taken(options: dict[str, Any]) -> None:
    assert scripted_llm({}, **options).llm_engine.config.scheduler.max_model_len == 64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not supported here.*1"),
        ({"enable_lora": True}, "enable_lora"),
        ({"max_num_seq": 3}, "did you mean max_num_seqs"),
        ({"enforce_eagre": True}, "did you mean enforce_eager"),
        ({"colour": 1}, "known are model, "),
        ({"block_size": "16"}, "block_size must be int"),
        ({"block_size": 16.0}, "block_size must be int"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_model_len": "64"}, "max_model_len must be int"),
        ({"max_model_len": 5000}, "max_model_len must be between 1 and the model's own 4096, got 5000"),
        ({"dtype": "float64"}, "dtype must be one of auto, float32, bfloat16, float16"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda"),
        ({"quantization": "awq"}, "quantization.*int8"),
        ({"scheduling_policy": "sjf"}, "fcfs, priority"),
        ({"seed": None}, "seed must be int"),
        ({"enable_prefix_caching": "yes"}, "enable_prefix_caching must be bool"),
        ({"max_logprobs": -1}, "max_logprobs must be 0 or more"),
        ({"kv_cache_memory_bytes": -5}, "kv_cache_memory_bytes must be at least 1"),
        ({"gpu_memory_utilization": 0}, r"in \(0, 1\]"),
        ({"num_gpu_blocks_override": 1}, "at least 2"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "needs a token a step"),
        ({"max_num_scheduled_tokens": 0}, "max_num_scheduled_tokens must be at least 1"),
        ({"long_prefill_token_threshold": -1}, "0 .off. or more"),
        ({"max_long_partial_prefills": 2}, "1 <= max_long_partial_prefills <= max_num_partial_prefills"),
        ({"max_num_partial_prefills": 2, "enable_chunked_prefill": False}, "needs chunked prefill"),
        ({"max_num_partial_prefills": 2, "long_prefill_token_threshold": 4097}, "more than max_model_len=4096"),
        ({"watermark": 1.0}, "watermark"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(**options)


def test_other_spellings_are_taken() -> None:
    assert EngineArgs(dtype=torch.bfloat16).dtype == "bfloat16"  # type: ignore[arg-type]
    assert EngineArgs(dtype="half").dtype == "float16"  # type: ignore[arg-type]
    assert EngineArgs(model=Path("a") / "b").model == "a/b"  # type: ignore[arg-type]
