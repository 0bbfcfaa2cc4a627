"""Attention over a paged KV cache: one kernel for prefill and decode.

A piece of work is (request, up to 48 rows), a row being one query token's head; all the query heads that share a KV head
are rows of one piece, so each key and value is read once for the group. Keys pass in tiles of 64 with an online softmax
(Milakov and Gimelshein 2018; Dao et al. 2022). Many rows: the tile's keys are transposed, and both products run in register
tiles, in bfloat16 where the processor multiplies it and the cache holds it, else in float32. Few rows (decode): dot
products straight from the cache; that is bound by memory, so a thread takes all KV heads of a tile, which lie together,
and asks for the next before it computes one. Threads draw pieces, or single heads of them where there are few, from an
atomic counter, so a ragged batch or a busy neighbour leaves no thread waiting for long.

Requests that decode one token and whose tables begin with the same blocks make one piece: the shared keys are taken once
with all their rows, each request's own keys after that, in the same running softmax (what vLLM calls cascade attention;
Juravsky et al. 2024).
"""

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from nbengine_kernels.cpu import ir, tiles
from nbengine_kernels.cpu.mathematics import LOOSE, exp, tanh
from nbengine_kernels.cpu.pieces import TILE_ROWS, cut_pieces, heads_of_unit
from nbengine_kernels.cpu.runtime import FLOAT32, rows_of, tag_of, threads
from nbengine_kernels.reference.attention import paged_attention as reference_paged_attention

TILE_KEYS = 64
FEW_ROWS = 8
_F32 = FLOAT32
_ZERO, _ONE, _NEVER = np.float32(0.0), np.float32(1.0), np.float32(-1e30)
_SERIAL_ELEMENTS = 2048  # of the query, below which waking threads costs more than it brings


@njit(cache=True, error_model="numpy")
def _share(rows: Any) -> Any:
    """How many of `rows` rows the next tile takes: 3 or 2 at a time, 1 if there is but one."""
    return np.int64(3) if rows == 3 or rows > 4 else min(rows, np.int64(2))


@njit(cache=True, error_model="numpy")
def _dense(
    cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, bs: Any, dim: Any, tag: Any, room: Any
) -> Any:
    """Where keys or values first .. first + count (at most KEYS, `first` a multiple of them) lie one after another: in the
    cache, or in `room`, to which they are copied if blocks are no multiple of KEYS."""
    step = dim * ir.size(tag)
    if bs % tiles.KEYS == 0:
        return cache + (ir.load_i32(table, first // bs) * stride + head * bs * dim) * ir.size(tag) + first % bs * step
    done = 0
    while done < count:
        offset = (first + done) % bs
        n = min(bs - offset, count - done)
        block = ir.load_i32(table, (first + done) // bs)
        ir.copy(room + done * step, cache + (block * stride + (head * bs + offset) * dim) * ir.size(tag), n * step)
        done += n
    return room


@njit(cache=True, error_model="numpy")
def _ask(
    cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, end: Any, bs: Any, dim: Any, tag: Any
) -> None:
    """Have memory bring the `count` keys or values from `first` on, those before `end`."""
    last = min(first + count, end)
    while first < last:
        n = min(bs - first % bs, last - first)
        place = ir.load_i32(table, first // bs) * stride + (head * bs + first % bs) * dim
        ir.prefetch(cache + place * ir.size(tag), n * dim * ir.size(tag))
        first += n


@njit(cache=True, error_model="numpy")
def _in_pairs(dim: Any, tag: Any) -> Any:
    """Whether many rows, too, are multiplied as bfloat16."""
    return ir.in_pairs(tag) and dim % 64 == 0


@njit(cache=True, error_model="numpy")
def _take_query(query: Any, stride: Any, tokens: Any, group: Any, dim: Any, tag: Any, q: Any) -> Any:
    """The query rows of `tokens` tokens, one after another at q, as the products take them, and how many: few rows as
    `scores_tile` wants them, many in float32, with zeros up to a multiple of 6."""
    rows = tokens * group
    few = rows <= FEW_ROWS
    for t in range(tokens):
        for i in range(group * dim):
            value, at = ir.load(query, t * stride + i, tag), t * group * dim + i
            if few or _in_pairs(dim, tag):
                ir.store(q, at, value, ir.factor_tag(tag))
            else:
                ir.store(q, at, value, _F32)
    if few:
        return rows
    filled = (rows + 5) // 6 * 6
    for i in range(rows * dim, filled * dim):
        if _in_pairs(dim, tag):
            ir.store(q, i, _ZERO, tag)
        else:
            ir.store(q, i, _ZERO, _F32)
    return filled


@njit(cache=True, error_model="numpy")
def _few_scores(q: Any, rows: Any, dim: Any, keys: Any, tag: Any, s: Any) -> None:
    """s[r, j] = q[r] . keys[j] for KEYS keys that lie one after another."""
    if dim * ir.size(tag) % ir.CACHE_LINE == 0:
        tiles.scores_tile(q, rows, dim, keys, tag, s, TILE_KEYS)
    else:
        for j in range(0, tiles.KEYS, 8):
            tiles.scores_tile_8(q, rows, dim, keys + j * dim * ir.size(tag), tag, s + j * 4, TILE_KEYS)


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
                tiles.product_tile_1x64(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                d += 64
            elif n == 2 and wide:
                tiles.product_tile_2_wide(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                d += tiles.FEW_COLUMNS
            elif wide:
                tiles.product_tile_3_wide(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                d += tiles.FEW_COLUMNS
            else:
                if n == 1:
                    tiles.product_tile_1(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                elif n == 2:
                    tiles.product_tile_2(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                else:
                    tiles.product_tile_3(a_row, TILE_KEYS, value, dim, tag, to, dim, count)
                d += 16
        r += n


@njit(cache=True, error_model="numpy")
def _many_scores(q: Any, rows: Any, dim: Any, turned: Any, count: Any, s: Any) -> None:
    """s = q @ turned, for keys that are widened and transposed: (dim, TILE_KEYS). A multiple of 6 rows is touched."""
    for i in range((rows + 5) // 6 * 6 * TILE_KEYS):
        ir.store(s, i, _ZERO, _F32)
    for j in range(0, count, tiles.MANY_COLUMNS):
        for r in range(0, rows, 6):
            to = s + (r * TILE_KEYS + j) * 4
            tiles.product_tile_6_wide(q + r * dim * 4, dim, turned + j * 4, TILE_KEYS, _F32, to, TILE_KEYS, dim)


@njit(cache=True, error_model="numpy")
def _add_many_products(a: Any, rows: Any, values: Any, count: Any, o: Any, dim: Any) -> None:
    """o += a @ values, for widened values. A multiple of 6 rows is touched."""
    wide = dim // tiles.MANY_COLUMNS * tiles.MANY_COLUMNS
    for d in range(0, wide, tiles.MANY_COLUMNS):
        for r in range(0, rows, 6):
            to = o + (r * dim + d) * 4
            tiles.product_tile_6_wide(a + r * TILE_KEYS * 4, TILE_KEYS, values + d * 4, dim, _F32, to, dim, count)
    for d in range(wide, dim, 16):
        for r in range(0, rows, 6):
            to = o + (r * dim + d) * 4
            tiles.product_tile_6(a + r * TILE_KEYS * 4, TILE_KEYS, values + d * 4, dim, _F32, to, dim, count)


@njit(cache=True, error_model="numpy")
def _many_pair_scores(
    q: Any, rows: Any, dim: Any, cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, bs: Any, tag: Any,
    room: Any, turned: Any, s: Any,
) -> None:  # fmt: skip
    """s = q @ keys first .. first + count of a bfloat16 cache, turned in pairs: (dim / 2, TILE_KEYS, 2)."""
    pairs = dim // 2
    for j in range(0, count, tiles.KEYS):
        keys = _dense(cache, stride, head, table, first + j, min(np.int64(tiles.KEYS), count - j), bs, dim, tag, room)
        for i in range(0, tiles.KEYS, 8):
            for d in range(0, pairs, 8):
                source, target = keys + (i * pairs + d) * 4, turned + (d * TILE_KEYS + j + i) * 4
                tiles.transpose_8x8(source, pairs, _F32, target, TILE_KEYS)
    for i in range(rows * TILE_KEYS):
        ir.store(s, i, _ZERO, _F32)
    for r in range(0, rows, 6):
        tiles.pair_tile_6x64(q + r * pairs * 4, pairs, turned, TILE_KEYS, s + r * TILE_KEYS * 4, TILE_KEYS, pairs)


@njit(cache=True, error_model="numpy")
def _add_many_pair_products(
    s: Any, rows: Any, dim: Any, cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, bs: Any, tag: Any,
    room: Any, paired: Any, o: Any,
) -> None:  # fmt: skip
    """o += s @ values first .. first + count of a bfloat16 cache, two and two side by side: (count / 2, dim, 2). The weights
    are rounded to bfloat16, in place."""
    step = dim * ir.size(tag)
    for j in range(0, count, tiles.KEYS):
        n = min(np.int64(tiles.KEYS), count - j)
        values = _dense(cache, stride, head, table, first + j, n, bs, dim, tag, room)
        for i in range(0, n, 2):  # beyond the last, whose weight is 0, anything finite
            tiles.pair_up(values + i * step, values + min(i + 1, n - 1) * step, paired + (j + i) // 2 * dim * 4, dim)
    tiles.round_row(s, s, rows * TILE_KEYS)
    for d in range(0, dim, 64):
        for r in range(0, rows, 6):
            weights = s + r * TILE_KEYS // 2 * 4
            tiles.pair_tile_6x64(weights, TILE_KEYS // 2, paired + d * 4, dim, o + (r * dim + d) * 4, dim, (count + 1) // 2)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _cap_row(s: Any, first: Any, last: Any, scale: Any, cap: Any) -> None:
    for j in range(first, last):
        ir.store(s, j, cap * tanh(ir.load(s, j, _F32) * scale / cap), _F32)


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


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _weigh(
    s: Any, rows: Any, group: Any, first_position: Any, begin: Any, count: Any, scale: Any, window: Any, cap: Any,
    o: Any, dim: Any, tops: Any, sums: Any,
) -> None:  # fmt: skip
    """Scores of keys begin .. begin + count -> weights, and what was summed so far brought down to the new maximum."""
    for r in range(rows):
        position = first_position + r // group
        last = min(count, position + 1 - begin)
        first = max(0, position - window + 1 - begin) if window > 0 else 0
        row = s + r * TILE_KEYS * 4
        before = ir.load(tops, r, _F32)
        if last <= first:
            first, last = 0, 0
        if cap > _ZERO:
            _cap_row(row, first, last, scale, cap)
        top, total = tiles.softmax_row_64(row, first, last, before, scale if cap == _ZERO else _ONE)
        if top > before:
            shrink = exp(before - top)
            ir.store(tops, r, top, _F32)
            total += ir.load(sums, r, _F32) * shrink
            for d in range(dim):
                ir.store(o, r * dim + d, ir.load(o, r * dim + d, _F32) * shrink, _F32)
        else:
            total += ir.load(sums, r, _F32)
        ir.store(sums, r, total, _F32)


@njit(cache=True, error_model="numpy")
def _attend(
    q: Any, rows: Any, group: Any, first_position: Any, head: Any, heads: Any, dim: Any,
    key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any, table: Any, bs: Any,
    scale: Any, window: Any, cap: Any, tag: Any, start: Any, end: Any,
    scratch: Any, room: Any, o: Any, tops: Any, sums: Any,
) -> None:  # fmt: skip
    """Take keys start .. end of `heads` KV heads from `head` on into o (heads, rows, dim), the weighted sums of values, and
    `tops` and `sums` (heads, rows), the weights' maxima and totals so far. q: (heads, rows, dim), see `_take_query`; more
    heads than one only for few rows. `start` is the first key of a block.
    """
    s = scratch
    tile, turned = s + TILE_KEYS * room * 4, s + TILE_KEYS * (room + dim) * 4
    filled = (rows + 5) // 6 * 6
    begin = start
    if window > 0:
        seen = max(0, first_position - window + 1)
        begin = max(start, seen - seen % bs)
    while begin < end:
        count = min(np.int64(TILE_KEYS), end - begin)
        if rows <= FEW_ROWS:
            for h in range(head, head + heads):
                at, row = (h - head) * rows * dim * 4, (h - head) * rows * 4
                # what will be read next is asked for while this is being computed
                next_head = h + 1 if h + 1 < head + heads else head
                following = begin if next_head > h else begin + TILE_KEYS
                for j in range(0, count, tiles.KEYS):
                    n = min(np.int64(tiles.KEYS), count - j)
                    _ask(key_cache, key_stride, next_head, table, following + j, tiles.KEYS, end, bs, dim, tag)
                    keys = _dense(key_cache, key_stride, h, table, begin + j, n, bs, dim, tag, tile)
                    _few_scores(q + at, rows, dim, keys, tag, s + j * 4)
                _weigh(s, rows, group, first_position, begin, count, scale, window, cap, o + at, dim, tops + row, sums + row)
                for j in range(0, count, tiles.KEYS):
                    n = min(np.int64(tiles.KEYS), count - j)
                    _ask(value_cache, value_stride, next_head, table, following + j, tiles.KEYS, end, bs, dim, tag)
                    values = _dense(value_cache, value_stride, h, table, begin + j, n, bs, dim, tag, tile)
                    _add_product(s + j * 4, rows, values, n, tag, o + at, dim)
        elif _in_pairs(dim, tag):
            _ask(key_cache, key_stride, head, table, begin + TILE_KEYS, TILE_KEYS, end, bs, dim, tag)
            _many_pair_scores(q, filled, dim, key_cache, key_stride, head, table, begin, count, bs, tag, tile, turned, s)
            _weigh(s, rows, group, first_position, begin, count, scale, window, cap, o, dim, tops, sums)
            _ask(value_cache, value_stride, head, table, begin + TILE_KEYS, TILE_KEYS, end, bs, dim, tag)
            _add_many_pair_products(
                s, filled, dim, value_cache, value_stride, head, table, begin, count, bs, tag, tile, turned, o
            )
        else:
            _gather_tile(key_cache, key_stride, head, table, begin, count, bs, dim, tag, tile)
            for j in range(0, TILE_KEYS, 8):
                for d in range(0, dim, 8):
                    tiles.transpose_8x8(tile + (j * dim + d) * 4, dim, _F32, turned + (d * TILE_KEYS + j) * 4, TILE_KEYS)
            _many_scores(q, rows, dim, turned, count, s)
            _weigh(s, rows, group, first_position, begin, count, scale, window, cap, o, dim, tops, sums)
            _gather_tile(value_cache, value_stride, head, table, begin, count, bs, dim, tag, tile)
            _add_many_products(s, rows, tile, count, o, dim)
        begin += count


@njit(cache=True, error_model="numpy")
def attend_pieces(
    query: Any, query_stride: Any, key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any,
    tables: Any, table_stride: Any, starts: Any, lengths: Any, out: Any, out_stride: Any, pieces: Any, counter: Any,
    heads: Any, kv_heads: Any, bs: Any, dim: Any, scale: Any, window: Any, cap: Any, tag: Any, out_tag: Any, memory: Any,
) -> None:  # fmt: skip
    """Draw units until none is left. memory: `scratch_floats` zeros. out is rounded to `tag`, kept as `out_tag`."""
    group = heads // kv_heads
    room = _room(group, kv_heads)
    q = (memory + 63) // 64 * 64
    o, own_q, own_o = q + room * dim * 4, q + 2 * room * dim * 4, q + 3 * room * dim * 4
    tops = q + 4 * room * dim * 4
    sums = tops + room * 4
    scratch = (sums + room * 4 + 63) // 64 * 64
    together = heads_of_unit(pieces, kv_heads)
    units = pieces.shape[0] * (kv_heads // together)
    while True:
        unit = ir.take_ticket(counter)
        if unit >= units:
            break
        piece, first_head = pieces[unit * together // kv_heads], unit * together % kv_heads
        request, members, first, n, shared = piece[0], piece[1], piece[2], piece[3], piece[4]
        rows = n * group
        at_once = together if rows <= FEW_ROWS and members == 1 else np.int64(1)
        for head in range(first_head, first_head + together, at_once):
            first_query = query + (first * query_stride + head * group * dim) * ir.size(tag)
            filled = rows * at_once
            for h in range(at_once):
                mine = first_query + h * group * dim * ir.size(tag)
                filled = max(filled, _take_query(mine, query_stride, n, group, dim, tag, q + h * rows * dim * 4))
            for i in range(filled * dim):
                ir.store(o, i, _ZERO, _F32)
            for r in range(rows * at_once):
                ir.store(tops, r, _NEVER, _F32)
                ir.store(sums, r, _ZERO, _F32)
            if members == 1:
                position = ir.load_i32(lengths, request) - (ir.load_i32(starts, request + 1) - first)
                _attend(
                    q, rows, group, position, head, at_once, dim, key_cache, key_stride, value_cache, value_stride,
                    tables + request * table_stride * 4, bs, scale, window, cap, tag, np.int64(0), position + n,
                    scratch, room, o, tops, sums,
                )  # fmt: skip
            else:
                _attend(
                    q, rows, group, shared, head, np.int64(1), dim, key_cache, key_stride, value_cache, value_stride,
                    tables + request * table_stride * 4, bs, scale, np.int64(0), cap, tag, np.int64(0), shared,
                    scratch, room, o, tops, sums,
                )  # fmt: skip
                for m in range(members):  # on a copy: the tiles touch rows beyond their own
                    at, length = m * group * dim * 4, ir.load_i32(lengths, request + m)
                    _take_query(first_query + m * query_stride * ir.size(tag), query_stride, 1, group, dim, tag, own_q)
                    ir.copy(own_o, o + at, group * dim * 4)
                    if m + 1 < members:  # what will be read next
                        following, end = tables + (request + m + 1) * table_stride * 4, ir.load_i32(lengths, request + m + 1)
                        _ask(key_cache, key_stride, head, following, shared, TILE_KEYS, end, bs, dim, tag)
                        _ask(value_cache, value_stride, head, following, shared, TILE_KEYS, end, bs, dim, tag)
                    _attend(
                        own_q, group, group, length - 1, head, np.int64(1), dim, key_cache, key_stride,
                        value_cache, value_stride, tables + (request + m) * table_stride * 4, bs, scale, np.int64(0),
                        cap, tag, shared, length, scratch, room, own_o, tops + m * group * 4, sums + m * group * 4,
                    )  # fmt: skip
                    ir.copy(o + at, own_o, group * dim * 4)
            for h in range(at_once):
                for t in range(n):
                    target = out + ((first + t) * out_stride + (head + h) * group * dim) * ir.size(out_tag)
                    for g in range(group):
                        row = (h * n + t) * group + g
                        share = _ONE / ir.load(sums, row, _F32)
                        for d in range(dim):
                            value = ir.rounded(ir.load(o, row * dim + d, _F32) * share, tag)
                            ir.store(target, g * dim + d, value, out_tag)
        ir.finish_ticket(counter)


@njit(cache=True, error_model="numpy")
def _room(group: Any, kv_heads: Any) -> Any:
    """Rows that a piece may have, and those that the tiles touch beyond."""
    return max(np.int64(TILE_ROWS), group, FEW_ROWS * kv_heads) + 6


@njit(cache=True, error_model="numpy")
def scratch_floats(heads: Any, kv_heads: Any, dim: Any) -> Any:
    """How much memory of its own a thread needs."""
    room = _room(heads // kv_heads, kv_heads)
    return room * (4 * dim + 2 + TILE_KEYS) + TILE_KEYS * 2 * dim + 64


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
