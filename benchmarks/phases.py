"""Where the time of one pass through the model goes: `python benchmarks/phases.py [--dtype bfloat16] [--pass 16x128 64x1@300]`

A pass is REQUESTSxTOKENS[@CACHED]: so many requests that each bring so many tokens and have so many in the cache already. For
each phase of a layer (all layers together, medians of the repeats): milliseconds, and for products GFLOP/s and the rate at
which weights are read, GB/s; the last line is what the phases leave: Python, and waking the threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from engine import small_model


class Batch(NamedTuple):
    """Satisfies PagedBatch."""

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    logits_rows: torch.Tensor
    token_ids: torch.Tensor


BLOCK = 16
PASSES = ("1x1@100", "16x1@160", "64x1@300", "16x128", "4x512", "32x32@512")


def make_batch(requests: int, tokens: int, cached: int) -> Batch:
    length = cached + tokens
    blocks = -(-length // BLOCK)
    tables = torch.randperm(requests * blocks, dtype=torch.int32).view(requests, blocks)
    positions = torch.arange(cached, length, dtype=torch.int32).repeat(requests)
    at = positions.view(requests, tokens).long()
    slots = (tables.long().gather(1, at // BLOCK) * BLOCK + at % BLOCK).flatten()
    starts = torch.arange(0, (requests + 1) * tokens, tokens, dtype=torch.int32)
    return Batch(
        positions, slots, starts, torch.full((requests,), length, dtype=torch.int32), tables,
        starts[1:].long() - 1, torch.randint(17, 49152, (requests * tokens,), dtype=torch.int32),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--pass", dest="passes", nargs="+", default=PASSES)
    parser.add_argument("--reps", type=int, default=7)
    args = parser.parse_args()

    from nbengine_kernels.cpu.stack import PHASE_NAMES

    from nbengine import LLM
    from nbengine.worker.model_runner import allocate_caches

    llm = LLM(str(small_model()), dtype=args.dtype, quantization=args.quantization)
    model: Any = llm.llm_engine.engine_core.core.executor.model
    stack = model._fused
    element = 4 if args.dtype == "float32" else 2
    shapes = model.kv_shapes
    for name in args.passes:
        size, _, cached = name.partition("@")
        requests, tokens = map(int, size.split("x"))
        batch = make_batch(requests, tokens, int(cached or 0))
        blocks = batch.block_tables.numel()
        caches = allocate_caches(shapes, blocks, BLOCK, device=model.device, dtype=model.dtype)
        for cache in caches:
            for tensor in cache:
                tensor.fill_(0.5)
        totals, phases = [], []
        for _ in range(args.reps + 1):
            stack.ticks[:] = 0
            start, t0 = time.perf_counter(), time.perf_counter_ns()
            embedded = model._embed(batch.token_ids)
            begun = time.perf_counter()
            stack.forward(embedded, batch, caches)
            totals.append(time.perf_counter() - start)
            phases.append((begun - start, stack.ticks[0].copy()))
        print(name, "total", [round(1e3 * t, 1) for t in totals[1:]])
        ticks = np.median(np.stack([p for _, p in phases[1:]]), axis=0)
        ms = ticks / TICKS_PER_MS
        total = 1e3 * statistics.median(totals[1:])
        for label, t in zip(PHASE_NAMES, ms):
            print(f"  {label:20}{t:9.3f} ms {t / total:6.1%}")
        print(f"  {'embed':20}{1e3 * statistics.median(p for p, _ in phases[1:]):9.3f}  rest {total - ms.sum():.3f}")


def _calibrate() -> float:
    from nbengine_kernels.cpu import ir
    from numba import njit

    @njit
    def now() -> int:
        return ir.ticks()

    now()
    a, t = now(), time.perf_counter()
    time.sleep(0.2)
    return (now() - a) / (1e3 * (time.perf_counter() - t))


TICKS_PER_MS = _calibrate()

if __name__ == "__main__":
    main()
