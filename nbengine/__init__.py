"""nbengine: a real LLM inference engine that a person can stop between any two moves, look inside, step back, and send
down another road.

    from nbengine import LLM, SamplingParams
    llm = LLM("smollm2-135m")
    llm.generate("The capital of France is", SamplingParams(temperature=0))
    dbg = llm.debug()          # in JupyterLab, show the Lab by naming it as the last line of a cell
    dbg.step()

Names load on first use: reading a trace needs neither torch nor zmq.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from nbengine.envs import calm_openmp, log_level

if TYPE_CHECKING:
    from nbengine.config import EngineArgs as EngineArgs
    from nbengine.engine.llm_engine import LLMEngine as LLMEngine
    from nbengine.llm import LLM as LLM
    from nbengine.outputs import CompletionOutput as CompletionOutput
    from nbengine.outputs import RequestOutput as RequestOutput
    from nbengine.sampling_params import RequestOutputKind as RequestOutputKind
    from nbengine.sampling_params import SamplingParams as SamplingParams

calm_openmp()

__version__ = "0.1.0"

# A library's manners: our own logger, silent until somebody asks, and never a hand on the root logger.
if not logging.getLogger(__name__).handlers:
    logging.getLogger(__name__).addHandler(logging.NullHandler())
    logging.getLogger(__name__).setLevel(log_level())

_HOME = {
    "CompletionOutput": "nbengine.outputs",
    "EngineArgs": "nbengine.config",
    "LLM": "nbengine.llm",
    "LLMEngine": "nbengine.engine.llm_engine",
    "RequestOutput": "nbengine.outputs",
    "RequestOutputKind": "nbengine.sampling_params",
    "SamplingParams": "nbengine.sampling_params",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nbengine' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
