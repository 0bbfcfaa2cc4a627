"""Attention over a paged KV cache: one kernel for prefill and decode.

A program owns (query tile, KV head). Its rows are the tile's tokens times the query heads that share the KV head, so
each key and value is read once for the group; an online softmax runs over tiles of keys (Milakov and Gimelshein 2018;
Dao et al. 2022). Which request a tile belongs to is searched for on the device: the host reads nothing back, so the launch
can stand in a CUDA graph.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nbengine_kernels.gpu.interpreter import interpreted

MIN_ROWS = 16
"""Rows of a tile, at least: the smallest matrix that tensor cores take."""
TILE_KEYS = 32


@triton.jit
def attention_kernel(
    query, key_cache, value_cache, block_tables, starts, lengths, out,
    query_stride, key_stride, value_stride, table_stride, out_stride, requests, scale, soft_cap, window,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    TOKENS: tl.constexpr = ROWS // GROUP
    tile, head = tl.program_id(0), tl.program_id(1)
    # 1. the last request whose first tile is at or before this one; request r starts at tile starts[r] // TOKENS + r
    low, high = 0, requests
    while high - low > 1:
        middle = (low + high) // 2
        first_tile = tl.load(starts + middle) // TOKENS + middle
        if first_tile <= tile:
            low = middle
        else:
            high = middle
    begin, end = tl.load(starts + low), tl.load(starts + low + 1)
    first = (tile - begin // TOKENS - low) * TOKENS  # of the request's query tokens
    if first < end - begin:
        length = tl.load(lengths + low)
        # 2. the tile's queries: row = token * GROUP + head within the group
        row = tl.arange(0, ROWS)
        d = tl.arange(0, PADDED_DIM)
        token = first + row // GROUP
        real = (row < TOKENS * GROUP) & (token < end - begin)
        position = length - (end - begin) + token
        place = (begin + token).to(tl.int64)
        column = (head * GROUP + row % GROUP) * DIM
        fits = real[:, None] & (d < DIM)[None, :]
        q = tl.load(query + place[:, None] * query_stride + column[:, None] + d[None, :], mask=fits, other=0.0)
        if WIDEN:
            q = q.to(tl.float32)
        # 3. tiles of keys, from the first that any row sees to the last
        last_position = tl.minimum(first + TOKENS, end - begin) - 1 + length - (end - begin)
        start = 0
        if window > 0:
            start = tl.maximum(0, length - (end - begin) + first - window + 1) // KEYS * KEYS
        top = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
        n = tl.arange(0, KEYS)
        for base in range(start, last_position + 1, KEYS):
            key = base + n
            inside = key <= last_position
            block = tl.load(block_tables + low * table_stride + key // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
            within = (head * BLOCK_SIZE + key % BLOCK_SIZE) * DIM
            keys_fit = inside[:, None] & (d < DIM)[None, :]
            k = tl.load(key_cache + (block * key_stride + within)[:, None] + d[None, :], mask=keys_fit, other=0.0)
            if WIDEN:
                k = k.to(tl.float32)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            if soft_cap > 0:
                scores = soft_cap * (2 * tl.sigmoid(2 * scores / soft_cap) - 1)
            seen = (key[None, :] <= position[:, None]) & real[:, None]
            if window > 0:
                seen = seen & (key[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores, -1e30)
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.where(seen, tl.exp(scores - new_top[:, None]), 0.0)
            shrink = tl.exp(top - new_top)
            total = total * shrink + tl.sum(weights, 1)
            v = tl.load(value_cache + (block * value_stride + within)[:, None] + d[None, :], mask=keys_fit, other=0.0)
            if WIDEN:
                v = v.to(tl.float32)
            acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            top = new_top
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        target = out + place[:, None] * out_stride + column[:, None] + d[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=fits)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """As `reference.paged_attention`; float32, bfloat16 and float16, any head dim up to 256."""
    if out is None:
        out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    total, heads, dim = query.shape
    _, kv_heads, block_size, _ = key_cache.shape
    requests = seq_lens.shape[0]
    if total == 0 or requests == 0:
        return out
    group = heads // kv_heads
    padded = max(16, triton.next_power_of_2(dim))
    rows, warps, stages = attention_launch(group, padded, query.element_size(), total > requests)
    grid = (total // (rows // group) + requests, kv_heads)
    attention_kernel[grid](
        query, key_cache, value_cache, block_tables, query_start_loc, seq_lens, out,
        query.stride(0), key_cache.stride(0), value_cache.stride(0), block_tables.stride(0), out.stride(0),
        requests, float(scale), float(soft_cap), int(sliding_window),
        BLOCK_SIZE=block_size, DIM=dim, PADDED_DIM=padded, GROUP=group, KV_HEADS=kv_heads,
        ROWS=rows, KEYS=TILE_KEYS, WIDEN=interpreted(), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def attention_launch(group: int, padded_dim: int, itemsize: int, prefill: bool) -> tuple[int, int, int]:
    """Rows of a tile, warps and stages of a program.

    Rows: enough for one token's group, and 64 where there is a prefill to share the keys with. Warps: as many as keep the
    accumulator in registers. Very wide heads in float32 get less of everything, or 64 KiB of shared memory are not enough.
    """
    wide = padded_dim * itemsize >= 1024
    rows: int = max(MIN_ROWS, triton.next_power_of_2(group))
    if prefill:
        rows = max(32 if wide else 64, rows)
    return rows, 8 if rows * padded_dim >= 64 * 128 else 4, 1 if wide else 2
