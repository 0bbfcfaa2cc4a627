"""Attention over a paged KV cache: one kernel for prefill and decode.

A piece of work is (request, up to 48 rows), a row being one query token's head; all the query heads that share a KV head
are rows of one piece, so each key and value is read once for the group. Keys pass in tiles of 64 with an online softmax
(Milakov and Gimelshein 2018; Dao et al. 2022): see `many_rows` and `few_rows`. Threads draw pieces, or single heads of them
where there are few, from an atomic counter, so a ragged batch or a busy neighbour leaves no thread waiting for long.

Requests that decode one token and whose tables begin with the same blocks make one piece: the shared keys are taken once
with all their rows, each request's own keys after that, in the same running softmax (what vLLM calls cascade attention;
Juravsky et al. 2024).
"""

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.few_rows import FEW_ROWS, attend_few, begin_few, few_rows_floats
from nbengine_kernels.cpu.many_rows import attend_many, many_rows_floats
from nbengine_kernels.cpu.pieces import TILE_ROWS, cut_pieces, heads_of_unit
from nbengine_kernels.cpu.runtime import FLOAT32, rows_of, tag_of, threads
from nbengine_kernels.reference.attention import paged_attention as reference_paged_attention

_F32 = FLOAT32
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_SERIAL_ELEMENTS = 2048  # of the query, below which waking threads costs more than it brings


@njit(cache=True, error_model="numpy")
def _put(o: Any, sums: Any, tokens: Any, width: Any, dim: Any, out: Any, out_stride: Any, tag: Any, out_tag: Any) -> None:
    """Weighted sums over the weights' totals, of `width` numbers a token, to where they belong."""
    for t in range(tokens):
        for i in range(0, width, dim):
            share = v.splat(_ONE / ir.load(sums, (t * width + i) // dim, _F32))
            for d in range(i, i + dim, ir.LANES):
                value = v.rounded(v.load(o, t * width + d, _F32) * share, tag)
                v.store(out, t * out_stride + d, value, out_tag)


@njit(cache=True, error_model="numpy")
def attend_pieces(
    query: Any, query_stride: Any, key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any,
    tables: Any, table_stride: Any, starts: Any, lengths: Any, out: Any, out_stride: Any, pieces: Any, counter: Any,
    heads: Any, kv_heads: Any, bs: Any, dim: Any, scale: Any, window: Any, cap: Any, tag: Any, out_tag: Any, memory: Any,
) -> None:  # fmt: skip
    """Draw units until none is left. memory: `scratch_floats` of them. out is rounded to `tag`, kept as `out_tag`."""
    group, step, out_step = heads // kv_heads, ir.size(tag), ir.size(out_tag)
    together = heads_of_unit(pieces, kv_heads)
    units = pieces.shape[0] * (kv_heads // together)
    room = _room(kv_heads)
    o = (memory + 63) // 64 * 64
    q, tops = o + room * dim * 4, o + 2 * room * dim * 4
    sums = tops + room * 4
    scratch = (sums + room * 4 + 63) // 64 * 64
    unit = ir.take_ticket(counter)
    while unit < units:
        following = ir.take_ticket(counter)  # drawn early, to fetch its keys meanwhile
        piece, first_head = pieces[unit * together // kv_heads], unit * together % kv_heads
        request, members, first, n, shared = piece[0], piece[1], piece[2], piece[3], piece[4]
        table = tables + request * table_stride * 4
        next_table, next_head, next_end = table, following * together % kv_heads, np.int64(0)
        if following < units and window == 0:
            after = pieces[following * together // kv_heads][0]
            next_table, next_end = tables + after * table_stride * 4, ir.load_i32(lengths, after)
        few = n * group <= FEW_ROWS and members == 1
        at_once = together if few else np.int64(1)
        for head in range(first_head, first_head + together, at_once):
            mine = query + (first * query_stride + head * group * dim) * step
            target = out + (first * out_stride + head * group * dim) * out_step
            position = ir.load_i32(lengths, request) - (ir.load_i32(starts, request + 1) - first)
            if few:
                rows = n * group
                for h in range(at_once):
                    at, row = h * rows * dim * 4, h * rows * 4
                    begin_few(
                        mine + h * group * dim * step, query_stride, n, group * dim, dim, tag,
                        q + at, o + at, tops + row, sums + row,
                    )  # fmt: skip
                attend_few(
                    q, rows, group, position, head, at_once, dim, key_cache, key_stride, value_cache, value_stride,
                    table, bs, scale, window, cap, tag, np.int64(0), position + n,
                    next_table, next_head, next_end, scratch, o, tops, sums,
                )  # fmt: skip
                for h in range(at_once):
                    at, place = h * rows, target + h * group * dim * out_step
                    _put(o + at * dim * 4, sums + at * 4, n, group * dim, dim, place, out_stride, tag, out_tag)
                continue
            for part in range(0, group, TILE_ROWS):  # one, unless a KV head has more rows than a piece
                some = min(group - part, np.int64(TILE_ROWS))
                position, end = (position, position + n) if members == 1 else (shared, shared)
                attend_many(
                    mine + part * dim * step, query_stride, n, some, position, head, dim, key_cache, key_stride,
                    value_cache, value_stride, table, bs, scale, window, cap, tag, end, scratch, o, tops, sums,
                )  # fmt: skip
                for m in range(members if members > 1 else np.int64(0)):  # each one's own keys
                    at, row, length = o + m * some * dim * 4, m * some * 4, ir.load_i32(lengths, request + m)
                    own = tables + (request + m) * table_stride * 4
                    next_own = own + table_stride * 4
                    next_length = ir.load_i32(lengths, request + m + 1) if m + 1 < members else np.int64(0)
                    for i in range(0, some * dim, ir.LANES):
                        value = v.load(mine + m * query_stride * step, part * dim + i, tag)
                        v.store(q, i, value, ir.factor_tag(tag))
                    attend_few(
                        q, some, some, length - 1, head, np.int64(1), dim, key_cache, key_stride,
                        value_cache, value_stride, own, bs, scale, window, cap, tag, shared, length,
                        next_own, head, next_length, scratch, at, tops + row, sums + row,
                    )  # fmt: skip
                _put(o, sums, n, some * dim, dim, target + part * dim * out_step, out_stride, tag, out_tag)
        ir.finish_ticket(counter)
        unit = following


@njit(cache=True, error_model="numpy")
def _room(kv_heads: Any) -> Any:
    """Rows that a piece may have, and those that the tiles touch beyond."""
    return max(np.int64(TILE_ROWS), FEW_ROWS * kv_heads) + ir.LANES


@njit(cache=True, error_model="numpy")
def scratch_floats(kv_heads: Any, dim: Any) -> Any:
    """How much memory of its own a thread needs."""
    room = _room(kv_heads)
    return 2 * room * (dim + 1) + max(many_rows_floats(dim), few_rows_floats(room, dim)) + 64


@njit(cache=True, error_model="numpy", parallel=True)
def _parallel(
    query: Any, query_stride: Any, key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any,
    tables: Any, table_stride: Any, starts: Any, lengths: Any, out: Any, out_stride: Any, requests: Any,
    heads: Any, kv_heads: Any, bs: Any, dim: Any, scale: Any, window: Any, cap: Any, tag: Any, workers: Any,
) -> None:  # fmt: skip
    pieces = cut_pieces(tables, table_stride, starts, lengths, requests, heads // kv_heads, bs, window)
    counter = np.zeros(ir.COUNTER_BYTES // 8, dtype=np.int64)
    address = counter.ctypes.data
    memory = np.zeros((workers, scratch_floats(kv_heads, dim)), dtype=np.float32)
    for w in prange(workers):
        attend_pieces(
            query, query_stride, key_cache, key_stride, value_cache, value_stride, tables, table_stride, starts, lengths,
            out, out_stride, pieces, address, heads, kv_heads, bs, dim, scale, window, cap, tag, tag, memory[w].ctypes.data,
        )  # fmt: skip
    ir.keep(memory)
    ir.keep(counter)


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
    """As `reference.paged_attention`; float32 and bfloat16, head dims that are multiples of 16. Others go there."""
    tag = tag_of(query)
    total, heads, dim = query.shape
    _, kv_heads, block_size, _ = key_cache.shape
    fits = (
        key_cache.dtype == value_cache.dtype == query.dtype
        and rows_of(query)
        and rows_of(key_cache)
        and rows_of(value_cache)
    )
    if tag is None or dim % 16 or not fits or block_tables.dtype != torch.int32 or (out is not None and not rows_of(out)):
        return reference_paged_attention(
            query, key_cache, value_cache, block_tables, query_start_loc, seq_lens,
            scale=scale, sliding_window=sliding_window, soft_cap=soft_cap, out=out,
        )  # fmt: skip
    if out is None:
        out = torch.empty((total, heads, dim), dtype=query.dtype)
    requests = seq_lens.shape[0]
    if total == 0 or requests == 0:
        return out
    caches = (
        query.data_ptr(), query.stride(0), key_cache.data_ptr(), key_cache.stride(0),
        value_cache.data_ptr(), value_cache.stride(0), block_tables.data_ptr(), block_tables.stride(0),
        query_start_loc.data_ptr(), seq_lens.data_ptr(), out.data_ptr(), out.stride(0),
    )  # fmt: skip
    shape = (heads, kv_heads, block_size, dim, np.float32(scale), int(sliding_window), np.float32(soft_cap), tag)
    workers = threads()
    if workers == 1 or total * heads * dim < _SERIAL_ELEMENTS:
        pieces = cut_pieces(*caches[6:10], requests, heads // kv_heads, block_size, int(sliding_window))
        counter = np.zeros(ir.COUNTER_BYTES // 8, np.int64)
        memory = np.zeros(scratch_floats(kv_heads, dim), np.float32)
        attend_pieces(*caches, pieces, counter.ctypes.data, *shape, tag, memory.ctypes.data)
    else:
        _parallel(*caches, requests, *shape, workers)
    return out
