"""Attention over a paged KV cache: one kernel for prefill and decode.

A piece of work is (request, KV head, up to 48 rows), a row being one query token's head; all the query heads that share
the KV head are rows of one piece, so each key and value is read once for the group. Keys pass in tiles of 64 with an
online softmax (Milakov and Gimelshein 2018; Dao et al. 2022). Many rows: the tile is widened, its keys transposed, and
both products run in register tiles. Few rows (decode): dot products straight from the cache. Threads draw pieces from
an atomic counter, so a ragged batch or a busy neighbour leaves no thread waiting for long.

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
from nbengine_kernels.cpu.mathematics import LOOSE, exp, tanh
from nbengine_kernels.cpu.runtime import FLOAT32, rows_of, tag_of, threads
from nbengine_kernels.reference.attention import paged_attention as reference_paged_attention

TILE_KEYS = 64
TILE_ROWS = 48
FEW_ROWS = 8
_F32 = FLOAT32
_ZERO, _ONE, _NEVER = np.float32(0.0), np.float32(1.0), np.float32(-1e30)
LEAST_SHARED = 64  # keys that two requests must share to be taken together
_SERIAL_ELEMENTS = 2048  # of the query, below which waking threads costs more than it brings


@njit(cache=True, error_model="numpy")
def _share(rows: Any) -> Any:
    """How many of `rows` rows the next tile takes: 3 or 2 at a time, 1 if there is but one."""
    return np.int64(3) if rows == 3 or rows > 4 else min(rows, np.int64(2))


@njit(cache=True, error_model="numpy")
def _few_scores(q: Any, rows: Any, dim: Any, keys: Any, count: Any, tag: Any, s: Any) -> None:
    """s[r, j] = q[r] . keys[j] for `count` keys that lie one after another; up to 3 rows."""
    j = 0
    while j < count:
        key, to = keys + j * dim * ir.size(tag), s + j * 4
        four = count - j >= 4
        if rows == 1 and four:
            ir.dot_tile_1x4(q, dim, key, dim, tag, to, TILE_KEYS, dim)
        elif rows == 1:
            ir.dot_tile_1x1(q, dim, key, dim, tag, to, TILE_KEYS, dim)
        elif rows == 2 and four:
            ir.dot_tile_2x4(q, dim, key, dim, tag, to, TILE_KEYS, dim)
        elif rows == 2:
            ir.dot_tile_2x1(q, dim, key, dim, tag, to, TILE_KEYS, dim)
        elif four:
            ir.dot_tile_3x4(q, dim, key, dim, tag, to, TILE_KEYS, dim)
        else:
            ir.dot_tile_3x1(q, dim, key, dim, tag, to, TILE_KEYS, dim)
        j += 4 if four else 1


@njit(cache=True, error_model="numpy")
def _add_product(a: Any, rows: Any, values: Any, count: Any, tag: Any, o: Any, dim: Any) -> None:
    """o[r, :] += a[r, 0:count] @ values[0:count, :]; a's rows are TILE_KEYS apart."""
    r = 0
    while r < rows:
        n, a_row, o_row = _share(rows - r), a + r * TILE_KEYS * 4, o + r * dim * 4
        d = 0
        while d < dim:
            value, to = values + d * ir.size(tag), o_row + d * 4
            wide = dim % 64 == 0
            if n == 1 and wide:
                ir.product_tile_1x64(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                d += 64
            elif n == 2 and wide:
                ir.product_tile_2_wide(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                d += ir.FEW_COLUMNS
            elif wide:
                ir.product_tile_3_wide(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                d += ir.FEW_COLUMNS
            else:
                if n == 1:
                    ir.product_tile_1(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                elif n == 2:
                    ir.product_tile_2(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                else:
                    ir.product_tile_3(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                d += 16
        r += n


@njit(cache=True, error_model="numpy")
def _many_scores(q: Any, rows: Any, dim: Any, turned: Any, count: Any, s: Any) -> None:
    """s = q @ turned, for keys that are widened and transposed: (dim, TILE_KEYS). A multiple of 6 rows is touched."""
    for i in range((rows + 5) // 6 * 6 * TILE_KEYS):
        ir.store(s, i, _ZERO, _F32)
    for j in range(0, count, ir.MANY_COLUMNS):
        for r in range(0, rows, 6):
            to = s + (r * TILE_KEYS + j) * 4
            ir.product_tile_6_wide(q + r * dim * 4, dim, turned + j * 4, TILE_KEYS, _F32, to, TILE_KEYS, dim)


@njit(cache=True, error_model="numpy")
def _add_many_products(a: Any, rows: Any, values: Any, count: Any, o: Any, dim: Any) -> None:
    """o += a @ values, for widened values. A multiple of 6 rows is touched."""
    wide = dim // ir.MANY_COLUMNS * ir.MANY_COLUMNS
    for d in range(0, wide, ir.MANY_COLUMNS):
        for r in range(0, rows, 6):
            to = o + (r * dim + d) * 4
            ir.product_tile_6_wide(a + r * TILE_KEYS * 4, TILE_KEYS, values + d * 4, dim, _F32, to, dim, count)
    for d in range(wide, dim, 16):
        for r in range(0, rows, 6):
            to = o + (r * dim + d) * 4
            ir.product_tile_6(a + r * TILE_KEYS * 4, TILE_KEYS, values + d * 4, dim, _F32, to, dim, count)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _cap_row(s: Any, first: Any, last: Any, cap: Any) -> None:
    for j in range(first, last):
        ir.store(s, j, cap * tanh(ir.load(s, j, _F32) / cap), _F32)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _gather_tile(
    cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, bs: Any, dim: Any, tag: Any, to: Any
) -> None:
    """Widen keys or values first .. first + count into a dense (TILE_KEYS, dim) float32 tile; zeros after them."""
    done = 0
    while done < count:
        offset = (first + done) % bs
        block = ir.load_i32(table, (first + done) // bs)
        n = min(bs - offset, count - done)
        source = cache + (block * stride + (head * bs + offset) * dim) * ir.size(tag)
        target = to + done * dim * 4
        for i in range(n * dim):
            ir.store(target, i, ir.load(source, i, tag), _F32)
        done += n
    for i in range(count * dim, TILE_KEYS * dim):
        ir.store(to, i, _ZERO, _F32)


@njit(cache=True, error_model="numpy")
def _attend(
    q: Any, rows: Any, group: Any, first_position: Any, head: Any, dim: Any,
    key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any, table: Any, bs: Any,
    window: Any, cap: Any, tag: Any, start: Any, end: Any, scratch: Any, room: Any, o: Any, tops: Any, sums: Any,
) -> None:  # fmt: skip
    """Take keys start .. end into o (rows, dim), the weighted sums of values, and `tops` and `sums`, the weights' maxima
    and totals so far. q: (rows, dim), scaled. `start` is the first key of a block."""
    s = scratch
    tile, turned = s + TILE_KEYS * room * 4, s + TILE_KEYS * (room + dim) * 4
    few = rows <= FEW_ROWS
    begin = start
    if window > 0:
        seen = max(0, first_position - window + 1)
        begin = max(start, seen - seen % bs)
    while begin < end:
        count = min(np.int64(TILE_KEYS), end - begin)
        # 1. scores
        if few:
            done = 0
            while done < count:
                offset = (begin + done) % bs
                n = min(bs - offset, count - done)
                block = ir.load_i32(table, (begin + done) // bs)
                place = (head * bs + offset) * dim
                ir.prefetch(value_cache + (block * value_stride + place) * ir.size(tag), n * dim * ir.size(tag))
                keys = key_cache + (block * key_stride + place) * ir.size(tag)
                r = 0
                while r < rows:
                    share = _share(rows - r)
                    _few_scores(q + r * dim * 4, share, dim, keys, n, tag, s + (r * TILE_KEYS + done) * 4)
                    r += share
                done += n
        else:
            _gather_tile(key_cache, key_stride, head, table, begin, count, bs, dim, tag, tile)
            for j in range(0, TILE_KEYS, 8):
                for d in range(0, dim, 8):
                    ir.transpose_8x8(tile + (j * dim + d) * 4, dim, _F32, turned + (d * TILE_KEYS + j) * 4, TILE_KEYS)
            _many_scores(q, rows, dim, turned, count, s)
        # 2. weights, and what was summed so far brought down to the new maximum
        for r in range(rows):
            position = first_position + r // group
            last = min(count, position + 1 - begin)
            first = max(0, position - window + 1 - begin) if window > 0 else 0
            row = s + r * TILE_KEYS * 4
            before = ir.load(tops, r, _F32)
            if last <= first:
                first, last = 0, 0
            if cap > _ZERO:
                _cap_row(row, first, last, cap)
            top, total = ir.softmax_row_64(row, first, last, before)
            if top > before:
                shrink = exp(before - top)
                ir.store(tops, r, top, _F32)
                total += ir.load(sums, r, _F32) * shrink
                for d in range(dim):
                    ir.store(o, r * dim + d, ir.load(o, r * dim + d, _F32) * shrink, _F32)
            else:
                total += ir.load(sums, r, _F32)
            ir.store(sums, r, total, _F32)
        # 3. values
        if few:
            done = 0
            while done < count:
                offset = (begin + done) % bs
                n = min(bs - offset, count - done)
                block = ir.load_i32(table, (begin + done) // bs)
                place = (head * bs + offset) * dim
                if begin + count + done < end:
                    following = ir.load_i32(table, (begin + count + done) // bs)
                    ir.prefetch(key_cache + (following * key_stride + place) * ir.size(tag), n * dim * ir.size(tag))
                values = value_cache + (block * value_stride + place) * ir.size(tag)
                _add_product(s + done * 4, rows, values, n, tag, o, dim)
                done += n
        else:
            _gather_tile(value_cache, value_stride, head, table, begin, count, bs, dim, tag, tile)
            _add_many_products(s, rows, tile, count, o, dim)
        begin += count


@njit(cache=True, error_model="numpy")
def attend_pieces(
    query: Any, query_stride: Any, key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any,
    tables: Any, table_stride: Any, starts: Any, lengths: Any, out: Any, out_stride: Any, pieces: Any, counter: Any,
    heads: Any, kv_heads: Any, bs: Any, dim: Any, scale: Any, window: Any, cap: Any, tag: Any, out_tag: Any, memory: Any,
) -> None:  # fmt: skip
    """Draw pieces until none is left. memory: `scratch_floats` zeros. out is rounded to `tag`, kept as `out_tag`."""
    group = heads // kv_heads
    room = _room(group)
    q = (memory + 63) // 64 * 64
    o, own_q, own_o = q + room * dim * 4, q + 2 * room * dim * 4, q + 3 * room * dim * 4
    tops = q + 4 * room * dim * 4
    sums = tops + room * 4
    scratch = (sums + room * 4 + 63) // 64 * 64
    count = pieces.shape[0]
    while True:
        ticket = ir.take_ticket(counter)
        if ticket >= count * kv_heads:
            break
        head = ticket // count
        piece = pieces[ticket % count]
        request, members, first, n, shared = piece[0], piece[1], piece[2], piece[3], piece[4]
        rows = n * group
        for t in range(n):
            source = query + ((first + t) * query_stride + head * group * dim) * ir.size(tag)
            for i in range(group * dim):
                ir.store(q, t * group * dim + i, ir.load(source, i, tag) * scale, _F32)
        for i in range(rows * dim, (rows + 5) // 6 * 6 * dim):
            ir.store(q, i, _ZERO, _F32)
        for i in range((rows + 5) // 6 * 6 * dim):
            ir.store(o, i, _ZERO, _F32)
        for r in range(rows):
            ir.store(tops, r, _NEVER, _F32)
            ir.store(sums, r, _ZERO, _F32)
        if members == 1:
            position = ir.load_i32(lengths, request) - (ir.load_i32(starts, request + 1) - first)
            _attend(
                q, rows, group, position, head, dim, key_cache, key_stride, value_cache, value_stride,
                tables + request * table_stride * 4, bs, window, cap, tag, np.int64(0), position + n,
                scratch, room, o, tops, sums,
            )  # fmt: skip
        else:
            _attend(
                q, rows, group, shared, head, dim, key_cache, key_stride, value_cache, value_stride,
                tables + request * table_stride * 4, bs, np.int64(0), cap, tag, np.int64(0), shared,
                scratch, room, o, tops, sums,
            )  # fmt: skip
            for m in range(members):  # on a copy: the tiles touch rows beyond their own
                at, length = m * group * dim * 4, ir.load_i32(lengths, request + m)
                ir.copy(own_q, q + at, group * dim * 4)
                ir.copy(own_o, o + at, group * dim * 4)
                _attend(
                    own_q, group, group, length - 1, head, dim, key_cache, key_stride, value_cache, value_stride,
                    tables + (request + m) * table_stride * 4, bs, np.int64(0), cap, tag, shared, length,
                    scratch, room, own_o, tops + m * group * 4, sums + m * group * 4,
                )  # fmt: skip
                ir.copy(o + at, own_o, group * dim * 4)
        for t in range(n):
            target = out + ((first + t) * out_stride + head * group * dim) * ir.size(out_tag)
            for g in range(group):
                row = t * group + g
                share = _ONE / ir.load(sums, row, _F32)
                for d in range(dim):
                    ir.store(target, g * dim + d, ir.rounded(ir.load(o, row * dim + d, _F32) * share, tag), out_tag)
        ir.finish_ticket(counter)


@njit(cache=True, error_model="numpy")
def _room(group: Any) -> Any:
    """Rows that a piece may have, and those that the tiles touch beyond."""
    return max(np.int64(TILE_ROWS), group) + 6


@njit(cache=True, error_model="numpy")
def scratch_floats(heads: Any, kv_heads: Any, dim: Any) -> Any:
    """How much memory of its own a thread needs."""
    room = _room(heads // kv_heads)
    return room * (4 * dim + 2 + TILE_KEYS) + TILE_KEYS * 2 * dim + 64


@njit(cache=True, error_model="numpy")
def _shared_keys(tables: Any, table_stride: Any, lengths: Any, a: Any, b: Any, bs: Any) -> Any:
    """How many keys the requests a and b have in the same blocks, both requests' last key left out."""
    most = (min(ir.load_i32(lengths, a), ir.load_i32(lengths, b)) - 1) // bs
    n = np.int64(0)
    while n < most and ir.load_i32(tables, a * table_stride + n) == ir.load_i32(tables, b * table_stride + n):
        n += 1
    return n * bs


@njit(cache=True, error_model="numpy")
def cut_pieces(
    tables: Any, table_stride: Any, starts: Any, lengths: Any, requests: Any, group: Any, bs: Any, window: Any
) -> Any:
    """(pieces, 5): first request, number of requests, first query token, query tokens, keys that all of them share."""
    tokens = max(1, TILE_ROWS // group)
    total = ir.load_i32(starts, requests)
    pieces = np.empty((total // tokens + requests, 5), dtype=np.int64)
    count, r = np.int64(0), np.int64(0)
    while r < requests:
        first, end = ir.load_i32(starts, r), ir.load_i32(starts, r + 1)
        members, shared = np.int64(1), np.int64(0)
        if end - first == 1 and window == 0:
            while members < tokens and r + members < requests and ir.load_i32(starts, r + members + 1) == end + members:
                common = _shared_keys(tables, table_stride, lengths, r, r + members, bs)
                common = common if members == 1 else min(common, shared)
                if common < LEAST_SHARED:
                    break
                shared = common
                members += 1
        if members > 1:
            pieces[count] = (r, members, first, members, shared)
            count += 1
        else:
            for t in range(first, end, tokens):
                pieces[count] = (r, 1, t, min(tokens, end - t), 0)
                count += 1
        r += members
    return pieces[:count]


@njit(cache=True, error_model="numpy", parallel=True)
def _parallel(
    query: Any, query_stride: Any, key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any,
    tables: Any, table_stride: Any, starts: Any, lengths: Any, out: Any, out_stride: Any, requests: Any,
    heads: Any, kv_heads: Any, bs: Any, dim: Any, scale: Any, window: Any, cap: Any, tag: Any, workers: Any,
) -> None:  # fmt: skip
    pieces = cut_pieces(tables, table_stride, starts, lengths, requests, heads // kv_heads, bs, window)
    counter = np.zeros(ir.COUNTER_BYTES // 8, dtype=np.int64)
    address = counter.ctypes.data
    memory = np.zeros((workers, scratch_floats(heads, kv_heads, dim)), dtype=np.float32)
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
        memory = np.zeros(scratch_floats(heads, kv_heads, dim), np.float32)
        attend_pieces(*caches, pieces, counter.ctypes.data, *shape, tag, memory.ctypes.data)
    else:
        _parallel(*caches, requests, *shape, workers)
    return out
