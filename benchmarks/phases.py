"""Where the time of one pass through the model goes: `python benchmarks/phases.py --dtype bfloat16 --pass 16x128 64x1@300`

A pass is REQUESTSxTOKENS[@CACHED]: so many requests that each bring so many tokens and have so many in the cache already.
Printed for each phase, all layers together: milliseconds (of the first thread, medians of the repeats); for products also
GFLOP/s and the GB/s at which weights are read, for attention those of keys and values. "rest" is Python, and waking threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from engine import small_model  # also takes this folder out of the path, where transformers would find a "kernels"
from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.stack import PHASE_NAMES
from numba import njit
from torch import Tensor

from nbengine import LLM
from nbengine.models.decoder import DecoderModel
from nbengine.worker.model_runner import allocate_caches

BLOCK = 16
PASSES = ("1x1@100", "16x1@160", "64x1@300", "16x128", "4x512")
VOCABULARY = 49152


class Batch(NamedTuple):
    """Satisfies PagedBatch."""

    positions: Tensor
    slot_mapping: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    logits_rows: Tensor
    token_ids: Tensor


def make_batch(requests: int, tokens: int, cached: int) -> Batch:
    length = cached + tokens
    blocks = -(-length // BLOCK)
    tables = torch.randperm(requests * blocks, dtype=torch.int32).view(requests, blocks)
    positions = torch.arange(cached, length, dtype=torch.int32).repeat(requests)
    at = positions.view(requests, tokens).long()
    slots = (tables.long().gather(1, at // BLOCK) * BLOCK + at % BLOCK).flatten()
    starts = torch.arange(0, (requests + 1) * tokens, tokens, dtype=torch.int32)
    lengths = torch.full((requests,), length, dtype=torch.int32)
    ids = torch.randint(17, VOCABULARY, (requests * tokens,), dtype=torch.int32)
    return Batch(positions, slots, starts, lengths, tables, starts[1:].long() - 1, ids)


def work(model: DecoderModel, requests: int, tokens: int, cached: int) -> dict[str, tuple[float, float]]:
    """Floating-point operations and bytes from memory of the phases that have a limit, all layers together."""
    shape, element = model.shape, model.dtype.itemsize
    rows, inner = requests * tokens, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    width, attended = model._layers[0].down.in_features, shape.num_heads * shape.head_dim
    matrices = {
        "qkv": (shape.hidden_size, inner),
        "output": (attended, shape.hidden_size),
        "gate and up": (shape.hidden_size, 2 * width),
        "down": (width, shape.hidden_size),
    }
    layers = shape.num_layers
    limits = {name: (2.0 * layers * rows * a * b, float(layers * a * b * element)) for name, (a, b) in matrices.items()}
    head = shape.hidden_size * shape.vocab_size
    pairs = requests * sum(cached + t + 1 for t in range(tokens))  # of a query and a key that it sees
    kept = 2 * layers * requests * (cached + tokens) * shape.num_kv_heads * shape.head_dim * element
    limits["attention"] = 4.0 * layers * pairs * attended, float(kept)
    limits["head"] = 2.0 * requests * head, float(head * element)
    return limits


def ticks_per_ms() -> float:
    @njit  # type: ignore[untyped-decorator]
    def now() -> Any:
        return ir.ticks()

    first, start = now(), time.perf_counter()
    first = now()
    start = time.perf_counter()
    time.sleep(0.2)
    return float(now() - first) / (1e3 * (time.perf_counter() - start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--pass", dest="passes", nargs="+", default=PASSES)
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    per_ms = ticks_per_ms()
    llm = LLM(str(small_model()), dtype=args.dtype, quantization=args.quantization)
    model: Any = llm.llm_engine.engine_core.core.executor.model  # type: ignore[attr-defined]
    found = {name: measure(model, name, args.reps, per_ms) for name in args.passes}
    if args.json:
        print(json.dumps({"dtype": args.dtype, "quantization": args.quantization, "passes": found}))


def measure(model: Any, name: str, reps: int, per_ms: float) -> dict[str, float]:
    size, _, cached = name.partition("@")
    requests, tokens = map(int, size.split("x"))
    batch = make_batch(requests, tokens, int(cached or 0))
    caches = allocate_caches(
        model.kv_shapes, batch.block_tables.numel(), BLOCK, device=model.device, dtype=model.dtype
    )  # fmt: skip
    for cache in caches:
        cache.key.fill_(0.5)
        cache.value.fill_(0.5)
    totals, ticks = [], []
    for _ in range(reps + 1):  # the first warms up
        model._fused.ticks[:] = 0
        start = time.perf_counter()
        model.forward(batch, caches)
        totals.append(1e3 * (time.perf_counter() - start))
        ticks.append(model._fused.ticks[0].copy())
    total, spent = statistics.median(totals[1:]), np.median(np.stack(ticks[1:]), axis=0) / per_ms
    limits = work(model, requests, tokens, int(cached or 0))
    print(f"{name}: {total:.1f} ms")
    for phase, ms in zip(PHASE_NAMES, spent.tolist()):
        flop, nbytes = limits.get(phase, (0.0, 0.0))
        rates = f"{flop / ms / 1e6:9.0f} GFLOP/s {nbytes / ms / 1e6:6.1f} GB/s" if flop else ""
        print(f"  {phase:18}{ms:9.2f} ms {ms / total:6.1%}{rates}")
    print(f"  {'rest':18}{total - spent.sum():9.2f} ms")
    return {"total_ms": total, **dict(zip(PHASE_NAMES, spent.tolist()))}


if __name__ == "__main__":
    main()
