"""Scheduling: which requests compute how many tokens in each step, in which KV blocks."""

from __future__ import annotations

from nbengine.config import EngineConfig
from nbengine.dotted import find_class
from nbengine.scheduler.scheduler import Scheduler


def make_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler that `config.scheduler.scheduler_cls` names, stock if it names none. Raises ConfigError."""
    choice = config.scheduler.scheduler_cls
    return (find_class(choice, Scheduler, "scheduler_cls") if choice else Scheduler)(config)
