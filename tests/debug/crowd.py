"""A simulated run in which four requests do not fit the pool."""

from __future__ import annotations

from nbengine import LLM
from nbengine.debug.debugger import Debugger
from nbengine.executor.simulated import SimulatedExecutor


def crowded() -> Debugger:
    llm = LLM("simulated", executor_cls=SimulatedExecutor, block_size=4, num_gpu_blocks_override=12, max_model_len=40)
    dbg = llm.debug()
    for i in range(4):
        dbg.add(f"abcdefgh{i}", max_tokens=16)
    return dbg
