"""Batches that the dialects are compared on."""

from typing import Any

import torch
from torch import Tensor


def attention_case(
    spans: list[tuple[int, int]],
    *,
    heads: tuple[int, int],
    dim: int,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    shared: int = 0,
) -> dict[str, Any]:
    """Arguments of `paged_attention` for requests of (sequence length, query length), `shared` keys in common blocks.

    Blocks are shuffled; what lies beyond a sequence's end is NaN, so that a kernel which reads it is found out.
    """
    rng = torch.Generator().manual_seed(sum(a * 31 + b for a, b in spans) + dim)
    query_heads, kv_heads = heads
    needed = [-(-length // block_size) for length, _ in spans]
    ids = torch.randperm(sum(needed) + 2, generator=rng).int()
    tables = torch.zeros(len(spans), max(needed, default=1) or 1, dtype=torch.int32)
    caches = torch.randn(2, len(ids), kv_heads, block_size, dim, generator=rng).to(dtype)
    used = 0
    written = torch.zeros(len(ids), block_size, dtype=torch.bool)
    for r, (length, _) in enumerate(spans):
        tables[r, : needed[r]] = ids[used : used + needed[r]]
        used += needed[r]
        tables[r, : shared // block_size] = tables[0, : shared // block_size]
        for position in range(length):
            written[tables[r, position // block_size], position % block_size] = True
    caches.masked_fill_(~written[None, :, None, :, None], float("nan"))
    starts = torch.tensor([0, *[n for _, n in spans]], dtype=torch.int32).cumsum(0).int()
    total = int(starts[-1])
    return {
        "query": torch.randn(total, query_heads, dim, generator=rng).to(dtype),
        "key_cache": caches[0],
        "value_cache": caches[1],
        "block_tables": tables,
        "query_start_loc": starts,
        "seq_lens": torch.tensor([length for length, _ in spans], dtype=torch.int32),
        "scale": dim**-0.5,
    }


BATCHES: dict[str, list[tuple[int, int]]] = {
    "one token": [(1, 1)],
    "one decode": [(37, 1)],
    "block boundary": [(16, 16), (17, 1), (32, 16), (64, 1), (65, 1), (15, 15)],
    "decode": [(5, 1), (130, 1), (64, 1), (1, 1)],
    "prefill": [(70, 70), (3, 3)],
    "ragged": [(33, 33), (64, 1), (65, 3), (150, 100), (9, 0), (40, 7)],
}


def assert_close(got: Tensor, wanted: Tensor, what: str = "") -> None:
    """Within what the dtype's rounding allows."""
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[wanted.dtype]
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance, msg=lambda text: f"{what}: {text}")
