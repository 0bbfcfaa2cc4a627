"""Attention of a piece of many rows: prefill, or decode of requests that share a prefix.

Scores are computed the other way round, S^T = K Q^T and O^T = V^T P^T, so that the rows of a piece lie side by side in a
vector: keys and values are taken as they lie in the cache, only the queries are transposed, once a piece, and the running
maxima and sums of the softmax are vectors, too. Both products are in bfloat16 where the processor multiplies it and the
cache holds it, by its own tiles if it has some (`amx_attention`); then weights are rounded to it. Else they are in float32.
"""

from typing import Any

import numpy as np
from numba import njit

from nbengine_kernels.cpu import amx_attention, ir, tiles
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.amx import INPUTS, ROWS, by_tiles, free_tiles, shape_tiles
from nbengine_kernels.cpu.blocks import TILE_KEYS, ask, dense, gather_tile
from nbengine_kernels.cpu.mathematics import LOOSE, tanh
from nbengine_kernels.cpu.pieces import TILE_ROWS
from nbengine_kernels.cpu.runtime import FLOAT32
from nbengine_kernels.cpu.tiles import COLUMNS, TALL

_F32 = FLOAT32
_ZERO, _ONE, _NEVER = np.float32(0.0), np.float32(1.0), np.float32(-1e30)
_LANES = ir.LANES
assert TILE_ROWS <= COLUMNS


@njit(cache=True, error_model="numpy")
def _turn_query(query: Any, stride: Any, tokens: Any, group: Any, dim: Any, tag: Any, flat: Any, turned: Any) -> None:
    """turned (dim, COLUMNS), or (dim / 2, COLUMNS) pairs: a column for each row, zeros after the last."""
    paired, width = ir.in_pairs(tag), group * dim
    for t in range(tokens):
        for i in range(0, width, _LANES):
            value, at = v.load(query, t * stride + i, tag), t * width + i
            if paired:
                v.store(flat, at, value, tag)
            else:
                v.store(flat, at, value, _F32)
    words = dim // 2 if paired else dim
    rows = tokens * group
    filled = (rows + _LANES - 1) // _LANES * _LANES
    for i in range(rows * words, filled * words):
        ir.store(flat, i, _ZERO, _F32)
    for r in range(0, filled, 8):
        for i in range(0, words, 8):
            tiles.transpose_8x8(flat + (r * words + i) * 4, words, _F32, turned + (i * COLUMNS + r) * 4, COLUMNS)


@njit(cache=True, error_model="numpy")
def _scores(
    turned: Any, vectors: Any, dim: Any, cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, bs: Any,
    tag: Any, room: Any, s: Any,
) -> None:  # fmt: skip
    """s[j, r] = key first + j . query r, for j < count made a multiple of TALL."""
    if by_tiles(tag) and dim % INPUTS == 0:
        for j in range(0, count, tiles.KEYS):
            n = min(np.int64(tiles.KEYS), count - j)
            keys = dense(cache, stride, head, table, first + j, n, bs, dim, tag, room)
            amx_attention.score_columns(keys, dim * 2, turned, dim // INPUTS, s + j * COLUMNS * 4, vectors)
    elif ir.in_pairs(tag) or ir.size(tag) == 4:  # as they are in the cache
        words = dim // 2 if ir.in_pairs(tag) else dim
        for j in range(0, count, tiles.KEYS):
            n = min(np.int64(tiles.KEYS), count - j)
            keys = dense(cache, stride, head, table, first + j, n, bs, dim, tag, room)
            for i in range(0, n, TALL):
                place = s + (j + i) * COLUMNS * 4
                tiles.score_columns(keys + i * words * 4, words, turned, words, place, vectors, tag)
    else:
        gather_tile(cache, stride, head, table, first, count, bs, dim, tag, room)
        for j in range(0, count, TALL):
            place = s + j * COLUMNS * 4
            tiles.score_columns(room + j * dim * 4, dim, turned, dim, place, vectors, _F32)


@njit(cache=True, error_model="numpy")
def _add_values(
    s: Any, vectors: Any, dim: Any, cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, bs: Any,
    tag: Any, room: Any, paired: Any, o: Any,
) -> None:  # fmt: skip
    """o[d, r] += the sum over j < count of value first + j, d, times weight s[j, r], or of pairs of them."""
    if ir.in_pairs(tag):
        step = dim * ir.size(tag)
        for j in range(0, count, tiles.KEYS):
            n = min(np.int64(tiles.KEYS), count - j)
            values = dense(cache, stride, head, table, first + j, n, bs, dim, tag, room)
            for i in range(0, n, 2):  # beyond the last, whose weight is 0, anything finite
                tiles.pair_up(values + i * step, values + min(i + 1, n - 1) * step, paired + (j + i) // 2 * dim * 4, dim)
        if by_tiles(tag) and dim % INPUTS == 0:
            amx_attention.add_values(paired, dim, s, count, o, vectors)
            return
        for d in range(0, dim, TALL):
            place = o + d * COLUMNS * 4
            tiles.add_columns(paired + d * 4, dim, s, (count + 1) // 2, place, vectors, tag)
    else:
        gather_tile(cache, stride, head, table, first, count, bs, dim, tag, room)
        for d in range(0, dim, TALL):
            tiles.add_columns(room + d * 4, dim, s, count, o + d * COLUMNS * 4, vectors, _F32)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _cap(s: Any, count: Any, columns: Any, scale: Any, cap: Any) -> None:
    for j in range(count):
        for r in range(columns):
            at = j * COLUMNS + r
            ir.store(s, at, cap * tanh(ir.load(s, at, _F32) * scale / cap), _F32)


@njit(cache=True, error_model="numpy")
def _hide(s: Any, begin: Any, count: Any, columns: Any, positions: Any, window: Any) -> None:
    """Set the scores of keys that a row doesn't see to less than any other."""
    never, one = v.splat(_NEVER), v.splat(_ONE)
    for c in range(0, columns, _LANES):
        last = v.load(positions, c, _F32)
        first = last - v.splat(np.float32(window)) if window > 0 else v.splat(np.float32(-1.0))
        key = v.splat(np.float32(begin))
        for j in range(count):
            at = j * COLUMNS + c
            score = v.where_less(last, key, never, v.load(s, at, _F32))
            v.store(s, at, v.where_less(first, key, score, never), _F32)
            key = key + one


@njit(cache=True, error_model="numpy")
def _weigh(s: Any, count: Any, columns: Any, scale: Any, tag: Any, o: Any, dim: Any, tops: Any, sums: Any) -> None:
    """Scores -> weights 2**(scale * score - top), in pairs where those are multiplied; what was summed so far is brought
    down to the new maximum. An odd number of weights gets a 0 beside the last."""
    by, zero = v.splat(scale), v.splat(_ZERO)
    for c in range(0, columns, _LANES):
        here, before = s + c * 4, v.load(tops, c, _F32)
        highest = v.load(here, 0, _F32)
        for j in range(0, count - 3, 4):  # four at a time, for each waits for the one before
            one = v.maximum(v.load(here, j * COLUMNS, _F32), v.load(here, (j + 1) * COLUMNS, _F32))
            two = v.maximum(v.load(here, (j + 2) * COLUMNS, _F32), v.load(here, (j + 3) * COLUMNS, _F32))
            highest = v.maximum(highest, v.maximum(one, two))
        for j in range(count // 4 * 4, count):
            highest = v.maximum(highest, v.load(here, j * COLUMNS, _F32))
        top = v.maximum(before, highest * by)
        down, total = zero - top, zero
        for j in range(0, count, 2):
            weight = v.exp2(v.fma(v.load(here, j * COLUMNS, _F32), by, down))
            other = zero
            if j + 1 < count:
                other = v.exp2(v.fma(v.load(here, (j + 1) * COLUMNS, _F32), by, down))
            if ir.in_pairs(tag):
                v.store_pairs(here, j // 2 * COLUMNS, weight, other)
            else:
                v.store(here, j * COLUMNS, weight, _F32)
                v.store(here, (j + 1) * COLUMNS, other, _F32)
            total = total + (weight + other)
        if v.any_less(before, top):
            shrink = v.exp2(before - top)
            total = total + v.load(sums, c, _F32) * shrink
            for d in range(dim):
                v.store(o, d * COLUMNS + c, v.load(o, d * COLUMNS + c, _F32) * shrink, _F32)
            v.store(tops, c, top, _F32)
        else:
            total = total + v.load(sums, c, _F32)
        v.store(sums, c, total, _F32)


@njit(cache=True, error_model="numpy")
def attend_many(
    query: Any, query_stride: Any, tokens: Any, group: Any, first_position: Any, head: Any, dim: Any,
    key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any, table: Any, bs: Any,
    scale: Any, window: Any, cap: Any, tag: Any, end: Any, memory: Any, o: Any, tops: Any, sums: Any,
) -> None:  # fmt: skip
    """Keys before `end` of one KV head. o (rows, dim): sums of values times 2**(score - top), a row being one query head of
    one token; tops, sums (rows,): each row's highest score, and its weights' total. o has room for LANES rows more, tops and
    sums for COLUMNS. first_position: of the first token, which the others follow; `end` if every row sees every key. memory:
    `many_rows_floats`.
    """
    rows = tokens * group
    vectors = (rows + _LANES - 1) // _LANES
    columns = vectors * _LANES
    turned = (memory + 63) // 64 * 64
    s, down = turned + dim * COLUMNS * 4, turned + (dim + TILE_KEYS) * COLUMNS * 4
    positions = down + dim * COLUMNS * 4
    room = positions + COLUMNS * 4
    paired = room + max(TILE_KEYS, np.int64(COLUMNS)) * dim * 4
    _turn_query(query, query_stride, tokens, group, dim, tag, room, turned)
    for r in range(columns):
        ir.store(tops, r, _NEVER, _F32)
        ir.store(sums, r, _ZERO, _F32)
        position = first_position + r // group if r < rows and first_position < end else end
        ir.store(positions, r, np.float32(position), _F32)
    for d in range(dim):
        for c in range(0, columns, _LANES):
            v.store(down, d * COLUMNS + c, v.splat(_ZERO), _F32)
    if by_tiles(tag):
        shape_tiles(np.int64(ROWS))
    begin = np.int64(0)
    if window > 0:
        seen = max(np.int64(0), first_position - window + 1)
        begin = seen - seen % bs
    by = v.LOG2E if cap > _ZERO else scale * v.LOG2E
    while begin < end:
        count = min(np.int64(TILE_KEYS), end - begin)
        ask(key_cache, key_stride, head, table, begin + TILE_KEYS, TILE_KEYS, end, bs, dim, tag)
        _scores(turned, vectors, dim, key_cache, key_stride, head, table, begin, count, bs, tag, room, s)
        if cap > _ZERO:
            _cap(s, count, columns, scale, cap)
        if window > 0 or begin + count > first_position + 1:
            _hide(s, begin, count, columns, positions, window)
        _weigh(s, count, columns, by, tag, down, dim, tops, sums)
        ask(value_cache, value_stride, head, table, begin + TILE_KEYS, TILE_KEYS, end, bs, dim, tag)
        _add_values(s, vectors, dim, value_cache, value_stride, head, table, begin, count, bs, tag, room, paired, down)
        begin += count
    if by_tiles(tag):
        free_tiles()
    for r in range(0, columns, 8):
        for d in range(0, dim, 8):
            tiles.transpose_8x8(down + (d * COLUMNS + r) * 4, COLUMNS, _F32, o + (r * dim + d) * 4, dim)


@njit(cache=True, error_model="numpy")
def many_rows_floats(dim: Any) -> Any:
    """How much memory `attend_many` needs."""
    return COLUMNS * (2 * dim + TILE_KEYS + 1) + (max(TILE_KEYS, COLUMNS) + TILE_KEYS) * dim + 16
