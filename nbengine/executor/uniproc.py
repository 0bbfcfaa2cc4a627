"""The executor of one process and one device: model, KV cache and runner, called straight from the engine's thread."""

from __future__ import annotations

import gc

import torch
from nbengine_kernels import kernels_for
from nbengine_kernels.pages import give_back_heap
from torch import Tensor

from nbengine import envs
from nbengine.config import EngineConfig
from nbengine.errors import NBEngineError
from nbengine.executor.base import Executor
from nbengine.models.interface import PagedModel
from nbengine.models.loader import load_model
from nbengine.plan import BatchTensors, ModelRunnerOutput, SchedulerOutput
from nbengine.slow import said_if_slow
from nbengine.worker.decode_graphs import DecodeGraphs
from nbengine.worker.memory import MemoryProbe
from nbengine.worker.model_runner import ModelRunner, RunnerLimits, allocate_caches

_PROFILED_LAYERS = 2  # a layer's temporary memory is free again before the next one: more layers show no higher peak
_MOST_ON_CPU = 2 << 30  # bytes of KV cache: a notebook shares its machine with others; kv_cache_memory_bytes asks for more
_COMPILES = "The kernels are being compiled for this processor. That takes up to a minute, and happens once: they are kept."


class UniProcExecutor(Executor):
    """Loads the model when made, unless it is given one. Raises ModelError."""

    def __init__(self, config: EngineConfig, model: PagedModel | None = None) -> None:
        super().__init__(config)
        scheduler = config.scheduler
        self._model: PagedModel | None = model or load_model(config.model, max_positions=scheduler.max_model_len)
        kernels = kernels_for(self._model.device, self._model.dtype, force=envs.kernel_dialect())
        limits = RunnerLimits(
            max_num_seqs=scheduler.max_num_seqs,
            max_model_len=scheduler.max_model_len,
            max_num_batched_tokens=scheduler.token_budget,
            block_size=config.cache.block_size,
        )
        graphs = None
        if self._model.device.type == "cuda" and self._model.capturable and not config.model.enforce_eager:
            graphs = DecodeGraphs(self._model, limits.max_num_seqs, -(-(limits.max_model_len + 1) // limits.block_size))
        self._runner: ModelRunner | None = ModelRunner(self._model, kernels, limits, graphs)

    @property
    def model(self) -> PagedModel:
        if self._model is None:
            raise NBEngineError("This engine was shut down: its model is gone. Make a new one.")
        return self._model

    @property
    def runner(self) -> ModelRunner:
        if self._runner is None:
            raise NBEngineError("This engine was shut down: its model is gone. Make a new one.")
        return self._runner

    @property
    def kv_bytes_per_block(self) -> int:
        per_token = sum(2 * shape.num_kv_heads * shape.head_dim for shape in self.model.kv_shapes)
        return per_token * self.config.cache.block_size * self.model.dtype.itemsize

    def available_kv_memory(self) -> int:
        """gpu_memory_utilization of what is free, less the peak of one forward pass at max_num_batched_tokens.

        On a CPU at most 2 GiB.
        """
        model, limits = self.model, self.runner.limits
        probe = MemoryProbe(model.device)
        kinds = list(dict.fromkeys(model.kv_shapes))
        made = allocate_caches(kinds, 1, limits.block_size, device=model.device, dtype=model.dtype)
        by_shape = dict(zip(kinds, made))  # every made-up token reads block 0, so one block a shape is enough
        caches = [by_shape[shape] for shape in model.kv_shapes]
        with probe, said_if_slow(_COMPILES):
            self.runner.run_dummy(limits.max_num_batched_tokens, caches, num_layers=_PROFILED_LAYERS)
        usable = int(probe.free_bytes * self.config.cache.gpu_memory_utilization)
        available = max(0, usable - probe.peak_bytes)
        return available if model.device.type == "cuda" else min(available, _MOST_ON_CPU)

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Memory that was asked for by number is taken here and now: first touches would cost a prefill a tenth of its time.
        Of a share of what is free, a block's is taken when the block is first used.
        """
        model, cache = self.model, self.config.cache
        self.runner.caches = allocate_caches(
            model.kv_shapes, num_blocks, cache.block_size, device=model.device, dtype=model.dtype
        )
        if cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None:
            for layer in self.runner.caches:
                for tensor in layer:
                    tensor.zero_()

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        return self.runner.execute(plan)

    def observe(self, on: bool) -> None:
        self.runner.observed = on

    def batch_tensors(self) -> BatchTensors | None:
        return self.runner.batch_tensors()

    def copy_blocks_out(self, block_ids: list[int]) -> list[Tensor]:
        """For each layer (2, len(block_ids), num_kv_heads, block_size, head_dim): keys, then values."""
        with torch.inference_mode():
            index = torch.tensor(block_ids, dtype=torch.int64, device=self.model.device)
            return [torch.stack((cache.key[index], cache.value[index])) for cache in self.runner.caches]

    def copy_blocks_in(self, block_ids: list[int], content: object) -> None:
        assert isinstance(content, list)
        with torch.inference_mode():
            index = torch.tensor(block_ids, dtype=torch.int64, device=self.model.device)
            for cache, saved in zip(self.runner.caches, content):
                cache.key[index], cache.value[index] = saved[0], saved[1]

    def fork(self, config: EngineConfig) -> UniProcExecutor:
        return UniProcExecutor(config, self.model)

    def forget_requests(self) -> None:
        self.runner.forget_requests()

    def shutdown(self) -> None:
        if self._model is None:
            return
        cuda = self._model.device.type == "cuda"
        self._model = self._runner = None
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
        else:
            give_back_heap()
