"""The way from the front to the core. Whatever crosses it is a msgspec Struct, so a core may live in another process."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from nbengine.clock import Clock
from nbengine.config import EngineConfig
from nbengine.engine.core import EngineCore
from nbengine.errors import ConfigError
from nbengine.executor.base import Executor
from nbengine.protocol import EngineCoreOutputs, EngineCoreRequest, FinishReason


class Queues(msgspec.Struct):
    """The core's request ids: running in order of admission, waiting with the next to be admitted first."""

    running: list[str]
    waiting: list[str]


class EngineCoreClient(ABC):
    """What LLMEngine may ask of a core, wherever that is. Every method may raise what EngineCore's raises."""

    @staticmethod
    def make_client(config: EngineConfig, executor: Executor, *, multiprocess_mode: bool = False) -> EngineCoreClient:
        """The client that fits: today the core is always in this process. Raises ConfigError for any other wish."""
        if multiprocess_mode:
            raise ConfigError("A core in a process of its own is not supported yet: leave multiprocess_mode off.")
        return InprocClient(EngineCore(config, executor))

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request. Raises DuplicateRequestError, InvalidRequestError."""

    @abstractmethod
    def get_output(self) -> EngineCoreOutputs:
        """The next step's outputs. In process this makes the step, in the caller's thread."""

    @abstractmethod
    def abort_requests(self, request_ids: list[str], reason: FinishReason = FinishReason.ABORT) -> list[str]:
        """End requests; those not alive are ignored. Returns those that were."""

    @abstractmethod
    def has_unfinished_requests(self) -> bool: ...

    @abstractmethod
    def has_work(self) -> bool:
        """Whether a step would do anything."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The engine's time."""

    @abstractmethod
    def queues(self) -> Queues: ...

    @abstractmethod
    def describe(self) -> str:
        """The scheduler's state in words, a line a request."""

    @abstractmethod
    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix index; False, and nothing changes, while blocks are held."""

    @abstractmethod
    def reset(self) -> list[str]:
        """Drop every request and the step under way. Returns the ids that were alive."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free weights and KV cache. Calling it twice is fine."""


class InprocClient(EngineCoreClient):
    """The core as an object in this process. `core` is for the window (Debugger), never for the front."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core

    def add_request(self, request: EngineCoreRequest) -> None:
        self.core.add_request(request)

    def get_output(self) -> EngineCoreOutputs:
        return self.core.step()

    def abort_requests(self, request_ids: list[str], reason: FinishReason = FinishReason.ABORT) -> list[str]:
        return self.core.abort_requests(request_ids, reason)

    def has_unfinished_requests(self) -> bool:
        return self.core.has_unfinished_requests()

    def has_work(self) -> bool:
        return self.core.has_work()

    @property
    def clock(self) -> Clock:
        return self.core.executor.clock

    def queues(self) -> Queues:
        scheduler = self.core.scheduler
        return Queues([r.request_id for r in scheduler.running], [r.request_id for r in scheduler.waiting_requests()])

    def describe(self) -> str:
        return self.core.scheduler.describe()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return self.core.reset_prefix_cache(reset_running_requests)

    def reset(self) -> list[str]:
        return self.core.reset()

    def shutdown(self) -> None:
        self.core.shutdown()
