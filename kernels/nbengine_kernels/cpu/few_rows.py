"""Attention of a piece of few rows (decode), straight from the cache: dot products of keys and rows, then sums of values.

That is bound by memory, so a thread takes all KV heads of a block, which lie together, reads them in order, and asks for a
line of the next block with each that it uses. Where the processor has tiles they do the products: see `amx_few_rows`.
"""

from typing import Any

import numpy as np
from numba import njit

from nbengine_kernels.cpu import amx_few_rows, ir, row_tiles, tiles
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.amx import INPUTS, by_tiles, free_tiles
from nbengine_kernels.cpu.blocks import TILE_KEYS, dense, place_of
from nbengine_kernels.cpu.mathematics import LOOSE, tanh
from nbengine_kernels.cpu.runtime import FLOAT32

FEW_ROWS = 8
_F32 = FLOAT32
_ZERO, _ONE, _NEVER = np.float32(0.0), np.float32(1.0), np.float32(-1e30)


@njit(cache=True, error_model="numpy")
def _scores(q: Any, rows: Any, dim: Any, keys: Any, tag: Any, s: Any, ahead: Any, room: Any) -> None:
    """s[r, j] = q[r] . keys[j] for KEYS keys that lie one after another."""
    r, step = np.int64(0), ir.size(ir.factor_tag(tag))
    while r < rows:
        mine, to = q + r * dim * step, s + r * TILE_KEYS * 4
        if dim * ir.size(tag) % ir.CACHE_LINE == 0:
            n = row_tiles.score_rows(mine, rows - r, dim, keys, tag, to, TILE_KEYS, ahead, room)
        else:
            n = np.int64(0)
            for j in range(0, tiles.KEYS, 8):
                at = j * dim * ir.size(tag)
                n = row_tiles.score_rows_8(mine, rows - r, dim, keys + at, tag, to + j * 4, TILE_KEYS, ahead + at, room)
        ahead = keys
        r += n


@njit(cache=True, error_model="numpy")
def _add_values(w: Any, rows: Any, dim: Any, values: Any, count: Any, tag: Any, o: Any, ahead: Any) -> None:
    """o[r, :] += the sum of weights w[r, j] times values[j, :]."""
    r, width = np.int64(0), np.int64(row_tiles.WIDE if dim % row_tiles.WIDE == 0 else 16)
    while r < rows:
        mine, n = w + r * TILE_KEYS * 4, np.int64(0)
        for d in range(0, dim, width):
            at, to = d * ir.size(tag), o + (r * dim + d) * 4
            if width == 16:
                n = row_tiles.add_values_16(mine, TILE_KEYS, rows - r, values + at, count, tag, to, dim, ahead + at)
            else:
                n = row_tiles.add_values_wide(mine, TILE_KEYS, rows - r, values + at, count, tag, to, dim, ahead + at)
        ahead = values
        r += n


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _cap_row(s: Any, first: Any, last: Any, scale: Any, cap: Any) -> None:
    for j in range(first, last):
        ir.store(s, j, cap * tanh(ir.load(s, j, _F32) * scale / cap), _F32)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _weigh(
    s: Any, rows: Any, group: Any, first_position: Any, begin: Any, count: Any, scale: Any, window: Any, cap: Any,
    o: Any, dim: Any, tops: Any, sums: Any, tag: Any,
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
        by = scale * v.LOG2E if cap == _ZERO else v.LOG2E
        top, total = row_tiles.softmax_row_64(row, first, last, before, by, tag)
        if top > before:
            shrink = v.exp2(v.splat(before - top))
            ir.store(tops, r, top, _F32)
            total += ir.load(sums, r, _F32) * v.first(shrink)
            for d in range(r * dim, r * dim + dim, ir.LANES):
                v.store(o, d, v.load(o, d, _F32) * shrink, _F32)
        else:
            total += ir.load(sums, r, _F32)
        ir.store(sums, r, total, _F32)


@njit(cache=True, error_model="numpy")
def begin_few(
    query: Any, stride: Any, tokens: Any, width: Any, dim: Any, tag: Any, q: Any, o: Any, tops: Any, sums: Any
) -> None:  # fmt: skip
    """Take the `width` numbers of each of `tokens` tokens to q, as `score_rows` wants them; nothing is summed yet."""
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
    `tops` and `sums` (heads, rows), the weights' maxima, as powers of 2, and totals so far. q: (heads, rows, dim), see
    `begin_few`. `start` is the first key of a block. next_…: whose keys will be wanted next. memory: `few_rows_floats`.
    """
    s, room = memory, memory + heads * rows * TILE_KEYS * 4
    aligned, block_bytes = bs % tiles.KEYS == 0, bs * dim * ir.size(tag)
    whole = by_tiles(tag) and aligned and dim % INPUTS == 0
    paired_bytes, turned_bytes = INPUTS // 2 * dim * 4, amx_few_rows.columns_of(rows) * dim * 2  # of a head, if whole
    paired, turned, after = room, room + heads * paired_bytes, room + TILE_KEYS * dim * 4
    if whole:
        after = turned + heads * turned_bytes + 64
        amx_few_rows.shape_few(rows, amx_few_rows.columns_of(rows))
        for h in range(heads):
            amx_few_rows.turn_few(q + h * rows * dim * 4, rows, dim, turned + h * turned_bytes)
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
            keys = place_of(key_cache, key_stride, head, table, begin + j, bs, dim, tag)
            ahead = place_of(value_cache, value_stride, head, table, begin, bs, dim, tag)
            if j + tiles.KEYS < count:
                ahead = place_of(key_cache, key_stride, head, table, begin + j + tiles.KEYS, bs, dim, tag)
            for h in range(heads):
                mine, to = keys + h * block_bytes, s + (h * rows * TILE_KEYS + j) * 4
                if whole:
                    ir.prefetch(ahead + h * block_bytes, n * dim * ir.size(tag))
                    amx_few_rows.score_keys(turned + h * turned_bytes, rows, dim, mine, to, after)
                    continue
                if not aligned:
                    mine = dense(key_cache, key_stride, head + h, table, begin + j, n, bs, dim, tag, room)
                _scores(q + h * rows * dim * 4, rows, dim, mine, tag, to, ahead + h * block_bytes, after)
        for h in range(heads):
            scores, row = s + h * rows * TILE_KEYS * 4, h * rows * 4
            at = o + row * dim
            _weigh(
                scores, rows, group, first_position, begin, count, scale, window, cap, at, dim, tops + row, sums + row, tag
            )
        for j in range(0, count, tiles.KEYS):
            n = min(np.int64(tiles.KEYS), count - j)
            values = place_of(value_cache, value_stride, head, table, begin + j, bs, dim, tag)
            ahead = values
            if j + tiles.KEYS < count:
                ahead = place_of(value_cache, value_stride, head, table, begin + j + tiles.KEYS, bs, dim, tag)
            elif first < last:
                ahead = place_of(key_cache, key_stride, following_head, following, first, bs, dim, tag)
            for h in range(heads):
                mine, weights = values + h * block_bytes, s + h * rows * TILE_KEYS * 4
                to = o + h * rows * dim * 4
                if whole:
                    ir.prefetch(ahead + h * block_bytes, n * dim * ir.size(tag))
                    here = paired + h * paired_bytes
                    amx_few_rows.pair_values(mine, n, dim, here, j % INPUTS // 2, j + tiles.KEYS >= count)
                    if j % INPUTS > 0 or j + tiles.KEYS >= count:
                        amx_few_rows.add_values(weights + j // INPUTS * INPUTS * 2, here, dim, to)
                    continue
                if not aligned:
                    mine = dense(value_cache, value_stride, head + h, table, begin + j, n, bs, dim, tag, room)
                weights += j * ir.size(ir.factor_tag(tag))
                _add_values(weights, rows, dim, mine, n, tag, to, ahead + h * block_bytes)
        begin += count
    if whole:
        free_tiles()


@njit(cache=True, error_model="numpy")
def few_rows_floats(rows: Any, dim: Any) -> Any:
    """How much memory `attend_few` needs for heads * rows."""
    return rows * (TILE_KEYS + 3 * dim) + TILE_KEYS * dim + 3 * ir.LANES**2
