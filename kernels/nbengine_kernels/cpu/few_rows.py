"""Attention of a piece of few rows (decode), straight from the cache: dot products of keys and rows, then sums of values.

That is bound by memory, so a thread takes all KV heads of a block, which lie together, and while it computes with the keys of
a tile its values are fetched, and meanwhile the keys of the next: each line is asked for just as often as one is used.
"""

from typing import Any

import numpy as np
from numba import njit

from nbengine_kernels.cpu import ir, tiles
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.blocks import TILE_KEYS, ask, dense
from nbengine_kernels.cpu.mathematics import LOOSE, exp, tanh
from nbengine_kernels.cpu.runtime import FLOAT32

FEW_ROWS = 8
_F32 = FLOAT32
_ZERO, _ONE, _NEVER = np.float32(0.0), np.float32(1.0), np.float32(-1e30)


@njit(cache=True, error_model="numpy")
def _share(rows: Any) -> Any:
    """How many of `rows` rows the next tile takes: 3 or 2 at a time, 1 if there is but one."""
    return np.int64(3) if rows == 3 or rows > 4 else min(rows, np.int64(2))


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


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _cap_row(s: Any, first: Any, last: Any, scale: Any, cap: Any) -> None:
    for j in range(first, last):
        ir.store(s, j, cap * tanh(ir.load(s, j, _F32) * scale / cap), _F32)


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
def begin_few(
    query: Any, stride: Any, tokens: Any, width: Any, dim: Any, tag: Any, q: Any, o: Any, tops: Any, sums: Any
) -> None:  # fmt: skip
    """Take the `width` numbers of each of `tokens` tokens to q, as `scores_tile` wants them; nothing is summed yet."""
    for t in range(tokens):
        for i in range(0, width, ir.LANES):
            v.store(q, t * width + i, v.load(query, t * stride + i, tag), ir.factor_tag(tag))
    for i in range(0, tokens * width, ir.LANES):
        v.store(o, i, v.splat(_ZERO), _F32)
    for r in range(tokens * width // dim):
        ir.store(tops, r, _NEVER, _F32)
        ir.store(sums, r, _ZERO, _F32)


@njit(cache=True, error_model="numpy")
def attend_few(
    q: Any, rows: Any, group: Any, first_position: Any, head: Any, heads: Any, dim: Any,
    key_cache: Any, key_stride: Any, value_cache: Any, value_stride: Any, table: Any, bs: Any,
    scale: Any, window: Any, cap: Any, tag: Any, start: Any, end: Any,
    next_table: Any, next_head: Any, next_end: Any, memory: Any, o: Any, tops: Any, sums: Any,
) -> None:  # fmt: skip
    """Take keys start .. end of `heads` KV heads from `head` on into o (heads, rows, dim), the weighted sums of values, and
    `tops` and `sums` (heads, rows), the weights' maxima and totals so far. q: (heads, rows, dim), see `begin_few`. `start` is
    the first key of a block. next_…: whose keys will be wanted next. memory: `few_rows_floats`.
    """
    s, room = memory, memory + heads * rows * TILE_KEYS * 4
    begin = start
    if window > 0:
        seen = max(0, first_position - window + 1)
        begin = max(start, seen - seen % bs)
    while begin < end:
        count = min(np.int64(TILE_KEYS), end - begin)
        following, following_head, first, last = table, head, begin + count, end
        if first >= end:
            following, following_head, first, last = next_table, next_head, np.int64(0), next_end
        for j in range(0, count, tiles.KEYS):
            n = min(np.int64(tiles.KEYS), count - j)
            for h in range(heads):
                ask(value_cache, value_stride, head + h, table, begin + j, tiles.KEYS, end, bs, dim, tag)
                keys = dense(key_cache, key_stride, head + h, table, begin + j, n, bs, dim, tag, room)
                _few_scores(q + h * rows * dim * 4, rows, dim, keys, tag, s + (h * rows * TILE_KEYS + j) * 4)
        for h in range(heads):
            scores, row = s + h * rows * TILE_KEYS * 4, h * rows * 4
            at = o + row * dim
            _weigh(scores, rows, group, first_position, begin, count, scale, window, cap, at, dim, tops + row, sums + row)
        for j in range(0, count, tiles.KEYS):
            n = min(np.int64(tiles.KEYS), count - j)
            for h in range(heads):
                ask(key_cache, key_stride, following_head + h, following, first + j, tiles.KEYS, last, bs, dim, tag)
                values = dense(value_cache, value_stride, head + h, table, begin + j, n, bs, dim, tag, room)
                _add_product(s + (h * rows * TILE_KEYS + j) * 4, rows, values, n, tag, o + h * rows * dim * 4, dim)
        begin += count


@njit(cache=True, error_model="numpy")
def few_rows_floats(rows: Any, dim: Any) -> Any:
    """How much memory `attend_few` needs for heads * rows."""
    return rows * TILE_KEYS + TILE_KEYS * dim
