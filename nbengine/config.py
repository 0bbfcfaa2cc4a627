"""The engine's options. `EngineArgs` is what a person writes (flat, vLLM's names); `EngineConfig` is what the parts read.

`EngineArgs(...).create_engine_config(model_limits)` checks the options against each other and against the model, once.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from nbengine.errors import ConfigError
from nbengine.fields import check_types

# vLLM's options that change nothing here, and the values that ask for what is done anyway; none given: any value does.
NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "cpu_offload_gb": (0,),
    "enable_lora": (False,),
    "speculative_config": (None,),
    "async_scheduling": (False,),
    "kv_cache_dtype": ("auto",),
    "model_impl": ("auto",),
    "load_format": ("auto", "safetensors"),
    "tokenizer_mode": ("auto",),
    "tokenizer_revision": (None,),
    "swap_space": (),  # a preempted request is computed again
    "log_stats": (),
    "disable_log_stats": (),  # nothing is logged; metrics are there when asked for
    "disable_custom_all_reduce": (),
}
_DTYPE_NAMES: dict[str, Any] = {name: name for name in ("auto", "float32", "bfloat16", "float16")}
_DTYPE_NAMES |= {"half": "float16", "float": "float32"}

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Policy = Literal["fcfs", "priority"]
HashAlgo = Literal["sha256", "sha256_cbor"] | Callable[[bytes | None, list[int], tuple[Any, ...] | None], bytes]


class ModelConfig(msgspec.Struct, kw_only=True):
    """model: a catalog name, a local directory, a Hub id or a GGUF file."""

    model: str = "smollm2-135m"
    tokenizer: str | None = None  # default: the model's own
    skip_tokenizer_init: bool = False  # token ids in, token ids out
    dtype: DType = "auto"  # auto = float32 on cpu, the checkpoint's own on cuda
    device: Device = "auto"
    seed: int = 0
    max_model_len: int = 0  # tokens, prompt + output
    max_logprobs: int = 20
    quantization: Literal["int8", "int4"] | None = None
    enforce_eager: bool = False  # no CUDA graphs
    trust_remote_code: bool = False
    revision: str | None = None


class CacheConfig(msgspec.Struct, kw_only=True):
    block_size: int = 16  # tokens a block
    num_gpu_blocks_override: int | None = None  # blocks, null block included; default: from memory
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.5  # share of the free memory for the KV cache; vLLM's 0.9 would starve a notebook
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: HashAlgo = "sha256"
    num_blocks: int = 0  # what it came to, null block included; set once the KV cache is made


class SchedulerConfig(msgspec.Struct, kw_only=True):
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_num_scheduled_tokens: int | None = None
    max_model_len: int = 0
    enable_chunked_prefill: bool = True
    policy: Policy = "fcfs"
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0  # share of the pool kept free on admission while something runs
    prefill_schedule_interval: int = 1
    async_scheduling: bool = False
    num_speculative_tokens: int = 0
    max_loras: int = 0
    scheduler_cls: type[Any] | str | None = None

    @property
    def token_budget(self) -> int:
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    def check(self) -> None:
        """Refuse limits that contradict each other. Raises ConfigError."""
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < 1:
            raise ConfigError(
                f"max_num_seqs and max_num_batched_tokens must be at least 1, got {self.max_num_seqs} and "
                f"{self.max_num_batched_tokens}."
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is less than max_num_seqs={self.max_num_seqs}: "
                "each running request needs a token a step. Raise the first or lower the second."
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"With chunked prefill off a prompt must fit one step, but max_num_batched_tokens="
                f"{self.max_num_batched_tokens} is less than max_model_len={self.max_model_len}. "
                "Raise the first, lower the second, or turn chunked prefill on."
            )
        if self.max_num_scheduled_tokens is not None and self.max_num_scheduled_tokens < 1:
            raise ConfigError(f"max_num_scheduled_tokens must be at least 1, got {self.max_num_scheduled_tokens}.")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(
                f"long_prefill_token_threshold must be 0 (off) or more, got {self.long_prefill_token_threshold}."
            )
        self._check_partial_prefills()
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark must be in [0, 1), got {self.watermark}.")
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f'policy must be "fcfs" or "priority", got {self.policy!r}.')

    def _check_partial_prefills(self) -> None:
        most, longest = self.max_num_partial_prefills, self.max_long_partial_prefills
        if not 1 <= longest <= most:
            raise ConfigError(
                f"1 <= max_long_partial_prefills <= max_num_partial_prefills must hold, got {longest} and {most}."
            )
        if most > 1 and not self.enable_chunked_prefill:
            raise ConfigError(f"max_num_partial_prefills={most} needs chunked prefill: turn it on, or leave this at 1.")
        if most > 1 and self.long_prefill_token_threshold > self.max_model_len:
            raise ConfigError(
                f"long_prefill_token_threshold={self.long_prefill_token_threshold} is more than max_model_len="
                f"{self.max_model_len}, so no prompt would be long."
            )


class EngineConfig(msgspec.Struct, kw_only=True):
    """Everything decided: what the engine's parts read."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    executor_cls: type[Any] | str | None = None


class EngineArgs(msgspec.Struct, kw_only=True):
    """The options of an engine, flat, with vLLM's names. None means: decided from the model and the machine.

    max_num_seqs, max_num_batched_tokens: vLLM's defaults (256 and 8,192 on a server) fit a GPU; here 64 and 2,048.
    scheduler_cls, executor_cls: a class, or its dotted name: your own scheduler from a notebook cell, say.

    Options of vLLM's that have no counterpart here (NO_EFFECT) are taken by `from_options`, and so by LLM, as long as they
    ask for what is done anyway: tensor_parallel_size=1, swap_space, … Any other is refused by name.
    """

    model: str = "smollm2-135m"
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    dtype: DType = "auto"
    device: Device = "auto"
    seed: int = 0
    max_model_len: int | None = None
    max_logprobs: int = 20
    quantization: Literal["int8", "int4"] | None = None
    enforce_eager: bool = False
    trust_remote_code: bool = False
    revision: str | None = None

    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.5
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: HashAlgo = "sha256"

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_scheduled_tokens: int | None = None
    enable_chunked_prefill: bool = True
    scheduling_policy: Policy = "fcfs"
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    scheduler_cls: type[Any] | str | None = None

    executor_cls: type[Any] | str | None = None

    def __post_init__(self) -> None:
        self.model = str(self.model)
        self.dtype = _DTYPE_NAMES.get(str(self.dtype).removeprefix("torch."), self.dtype)
        check_types(self, _CHECKED, ConfigError)

    @classmethod
    def from_options(cls, **options: Any) -> EngineArgs:
        """The same from keywords of which some may be vLLM's alone. Raises ConfigError for an unknown or wrong one."""
        for name in options.keys() & NO_EFFECT.keys():
            value, allowed = options.pop(name), NO_EFFECT[name]
            if allowed and value not in allowed:
                raise ConfigError(f"{name}={value!r} is not supported here: leave it out, or say {allowed[0]!r}.")
        for name in options:
            if name not in cls.__struct_fields__:
                near = difflib.get_close_matches(name, [*cls.__struct_fields__, *NO_EFFECT], n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(cls.__struct_fields__)}."
                raise ConfigError(f"There is no option {name!r}: {hint}")
        return cls(**options)

    def create_engine_config(self, model_max_len: int) -> EngineConfig:
        """Decide every option. `model_max_len`: the longest sequence that the model was made for, in tokens.

        Raises ConfigError for options that contradict each other.
        """
        max_model_len = self.max_model_len if self.max_model_len is not None else model_max_len
        if not 1 <= max_model_len <= model_max_len:
            raise ConfigError(f"max_model_len must be between 1 and the model's own {model_max_len}, got {max_model_len}.")
        if self.block_size < 1:
            raise ConfigError(f"block_size must be at least 1, got {self.block_size}.")
        if self.num_gpu_blocks_override is not None and self.num_gpu_blocks_override < 2:
            raise ConfigError(
                f"num_gpu_blocks_override must be at least 2 (block 0 is reserved), got {self.num_gpu_blocks_override}."
            )
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes < 1:
            raise ConfigError(f"kv_cache_memory_bytes must be at least 1, got {self.kv_cache_memory_bytes}.")
        if self.max_logprobs < 0:
            raise ConfigError(f"max_logprobs must be 0 or more, got {self.max_logprobs}.")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization}.")
        scheduler = self._scheduler_config(max_model_len)
        scheduler.check()
        if scheduler.long_prefill_token_threshold > scheduler.token_budget:
            warnings.warn(
                f"long_prefill_token_threshold={scheduler.long_prefill_token_threshold} has no effect: a step has "
                f"{scheduler.token_budget} tokens at most.",
                stacklevel=2,
            )
        model = self.model_config(max_model_len)
        cache = CacheConfig(**_shared_fields(self, CacheConfig))
        return EngineConfig(model=model, cache=cache, scheduler=scheduler, executor_cls=self.executor_cls)

    def model_config(self, max_model_len: int = 0) -> ModelConfig:
        """The options that concern the model. max_model_len: 0 while it is not known yet."""
        return ModelConfig(**_shared_fields(self, ModelConfig) | {"max_model_len": max_model_len})

    def _scheduler_config(self, max_model_len: int) -> SchedulerConfig:
        batched = self.max_num_batched_tokens
        if batched is None:
            batched = 2048 if self.enable_chunked_prefill else max(2048, max_model_len)
        seqs = self.max_num_seqs if self.max_num_seqs is not None else min(64, batched)
        threshold = self.long_prefill_token_threshold
        if self.max_num_partial_prefills > 1 and threshold == 0:
            threshold = int(max_model_len * 0.04)  # vLLM's rule
        return SchedulerConfig(
            **_shared_fields(self, SchedulerConfig)
            | {
                "max_num_seqs": seqs,
                "max_num_batched_tokens": batched,
                "max_model_len": max_model_len,
                "policy": self.scheduling_policy,
                "long_prefill_token_threshold": threshold,
            }
        )


_CLASSES_AND_FUNCTIONS = ("prefix_caching_hash_algo", "scheduler_cls", "executor_cls")  # their users check them
_CHECKED = [name for name in EngineArgs.__struct_fields__ if name not in _CLASSES_AND_FUNCTIONS]


def _shared_fields(args: EngineArgs, part: type[msgspec.Struct]) -> dict[str, Any]:
    """The options that `part` has under the same name."""
    return {name: getattr(args, name) for name in part.__struct_fields__ if name in EngineArgs.__struct_fields__}
