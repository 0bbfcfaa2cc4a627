"""Executors: what runs the model for an engine."""

from __future__ import annotations

from typing import Any

from nbengine.config import EngineConfig
from nbengine.dotted import find_class
from nbengine.executor.base import Executor


def executor_class(choice: type[Any] | str | None) -> type[Executor]:
    """The executor that `executor_cls` asks for, UniProcExecutor if None. Raises ConfigError if that is no Executor."""
    if choice is None:
        from nbengine.executor.uniproc import UniProcExecutor

        return UniProcExecutor
    return find_class(choice, Executor, "executor_cls")  # type: ignore[type-abstract]


def make_executor(config: EngineConfig) -> Executor:
    """An executor of the class that `config.executor_cls` names. Raises ConfigError, ModelError."""
    return executor_class(config.executor_cls)(config)
