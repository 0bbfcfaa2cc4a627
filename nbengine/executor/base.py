"""What the engine needs of an executor: memory for the KV cache, and a step of the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from nbengine.clock import Clock
from nbengine.config import EngineConfig, ModelConfig
from nbengine.models.facts import ModelFacts
from nbengine.plan import BatchTensors, ModelRunnerOutput, SchedulerOutput

__all__ = ["Executor", "ModelFacts"]


class Executor(ABC):
    """Runs the model. One executor serves one EngineCore, in the thread that steps it.

    clock: the engine's time, by which everything in it is timed.
    """

    @classmethod
    def model_facts(cls, model: ModelConfig) -> ModelFacts:
        """Asked first of all. An executor without weights says its own. Raises ModelError."""
        from nbengine.models import loader

        return loader.model_facts(model)

    @classmethod
    def load_tokenizer(cls, model: ModelConfig) -> Any:
        """The tokenizer for the front. Raises ModelError."""
        from nbengine.models import loader

        return loader.load_tokenizer(model)

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.clock = Clock()

    @property
    @abstractmethod
    def kv_bytes_per_block(self) -> int:
        """Bytes of one KV block over all layers."""

    @abstractmethod
    def available_kv_memory(self) -> int:
        """Bytes free for the KV cache, found by running the model once at its largest batch."""

    @abstractmethod
    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Allocate the KV cache: `num_blocks` blocks, null block included. Called once, before the first step."""

    @abstractmethod
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step. Mutates the KV cache at the plan's slots and the executor's copy of the requests' tokens.

        If it raises, the executor must still take the next plan: a failed step may leave nothing but unused KV content.
        """

    def observe(self, on: bool) -> None:
        """Keep (or stop keeping) what `batch_tensors` returns."""

    def batch_tensors(self) -> BatchTensors | None:
        """The tensors of the last step, None when not observed."""
        return None

    def copy_blocks_out(self, block_ids: list[int]) -> object | None:
        """The KV content of these blocks, for `copy_blocks_in`; None if this executor has no KV content."""
        return None

    def copy_blocks_in(self, block_ids: list[int], content: object) -> None:
        """Put back what `copy_blocks_out` gave."""

    def fork(self, config: EngineConfig) -> Executor:
        """A second executor with the same weights and a KV cache of its own, not made yet. One with weights shares them."""
        return type(self)(config)

    def forget_requests(self) -> None:
        """Drop every request: the next plan describes all of them as new (after a rewind, or reset)."""

    def shutdown(self) -> None:
        """Free weights and KV cache. Calling it twice is fine."""
