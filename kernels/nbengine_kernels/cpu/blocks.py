"""Keys and values where the blocks of a paged cache hold them. Strides from block to block are in elements."""

from typing import Any

import numpy as np
from numba import njit

from nbengine_kernels.cpu import ir, tiles
from nbengine_kernels.cpu.mathematics import LOOSE
from nbengine_kernels.cpu.runtime import FLOAT32

TILE_KEYS = 64  # that attention takes at a time
_F32 = FLOAT32
_ZERO = np.float32(0.0)


@njit(cache=True, error_model="numpy")
def dense(
    cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, bs: Any, dim: Any, tag: Any, room: Any
) -> Any:
    """Where keys or values first .. first + count (at most KEYS, `first` a multiple of them) lie one after another: in the
    cache, or in `room`, to which they are copied if blocks are no multiple of KEYS."""
    step = dim * ir.size(tag)
    if bs % tiles.KEYS == 0:
        return place_of(cache, stride, head, table, first, bs, dim, tag)
    done = 0
    while done < count:
        offset = (first + done) % bs
        n = min(bs - offset, count - done)
        block = ir.load_i32(table, (first + done) // bs)
        ir.copy(room + done * step, cache + (block * stride + (head * bs + offset) * dim) * ir.size(tag), n * step)
        done += n
    return room


@njit(cache=True, error_model="numpy")
def place_of(cache: Any, stride: Any, head: Any, table: Any, at: Any, bs: Any, dim: Any, tag: Any) -> Any:
    """Where key or value `at` lies; those that follow it in its block come next."""
    return cache + (ir.load_i32(table, at // bs) * stride + (head * bs + at % bs) * dim) * ir.size(tag)


@njit(cache=True, error_model="numpy")
def ask(
    cache: Any, stride: Any, head: Any, table: Any, first: Any, count: Any, end: Any, bs: Any, dim: Any, tag: Any
) -> None:
    """Have memory bring the `count` keys or values from `first` on, those before `end`."""
    last = min(first + count, end)
    while first < last:
        n = min(bs - first % bs, last - first)
        place = ir.load_i32(table, first // bs) * stride + (head * bs + first % bs) * dim
        ir.prefetch(cache + place * ir.size(tag), n * dim * ir.size(tag))
        first += n


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def gather_tile(
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
