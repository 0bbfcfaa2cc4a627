"""The two products of attention by the processor's tiles (see `amx`): bfloat16 keys and values, a piece of few rows.

16 keys are an A tile as they lie in the cache, the rows' queries in pairs a B tile of 4 or 8 columns. Weights are an A tile
of as many rows as there are, two keys' values side by side a row of B tiles. What is read is read in order, and but once.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from nbengine_kernels.cpu import ir, tiles
from nbengine_kernels.cpu.amx import INPUTS, OUTPUTS, ROWS, TILE_BYTES, call, pointer, write_shapes
from nbengine_kernels.cpu.blocks import TILE_KEYS
from nbengine_kernels.cpu.ir import I8, I64, _at, _load_vector, _loop, _store_vector
from nbengine_kernels.cpu.runtime import AMX, FLOAT32

_F32, _ZERO = FLOAT32, np.float32(0.0)
_SUMS, _WEIGHTS, _VALUES, _KEYS, _QUERIES, _SCORES = range(6)  # the tiles


@intrinsic
def shape_few(typingctx: Any, rows: Any, columns: Any) -> Any:
    """Shape tiles for so many rows, which are 4 or 8 columns of scores."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if AMX:
            rows, nbytes, whole = args[0], b.shl(args[1], I64(2)), (I64(ROWS), I64(TILE_BYTES))
            few, narrow = (rows, I64(TILE_BYTES)), (I64(ROWS), nbytes)
            write_shapes(b, [few, few, whole, whole, narrow, narrow])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _make_score_keys(columns: int) -> Any:
    """S[r, 0:16] = Q[r, :] . K[0:16, :] for all columns r; Q in pairs (dim / 2, columns, 2), the rows of S TILE_KEYS floats
    apart. room: for 16 * columns floats."""

    @intrinsic
    def score_keys(typingctx: Any, q: Any, dim: Any, keys: Any, s: Any, room: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            if AMX:
                write(b, *args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    def write(b: Any, q: Any, dim: Any, keys: Any, s: Any, room: Any) -> None:
        stride = b.shl(dim, I64(1))
        call(b, "tilezero", I8(_SCORES))

        def step(i: Any, state: list[Any]) -> list[Any]:
            call(b, "tileloadd64", I8(_KEYS), pointer(b, keys, b.mul(i, I64(TILE_BYTES))), stride)
            theirs = pointer(b, q, b.mul(i, I64(INPUTS // 2 * columns * 4)))
            call(b, "tileloadd64", I8(_QUERIES), theirs, I64(columns * 4))
            call(b, "tdpbf16ps", I8(_SCORES), I8(_KEYS), I8(_QUERIES))
            return []

        _loop(b, b.udiv(dim, I64(INPUTS)), [], step)
        call(b, "tilestored64", I8(_SCORES), pointer(b, room), I64(columns * 4))
        scores = [_load_vector(b, _at(b, room, I64(n * ROWS), ir.F32), types.float32, ROWS) for n in range(columns)]
        for r, row in enumerate(tiles.turn_index(b, scores, 4)):  # (key, row) -> (row, key)
            _store_vector(b, row, _at(b, s, I64(r * TILE_KEYS), ir.F32))

    return score_keys


_score_keys_4, _score_keys_8 = _make_score_keys(4), _make_score_keys(8)


@intrinsic
def add_values(typingctx: Any, weights: Any, paired: Any, dim: Any, o: Any) -> Any:
    """O[:, 0:dim] += W[:, 0:32] @ V, for as many rows as tiles have; W bfloat16, its rows TILE_KEYS words apart, V in pairs
    (16, dim, 2)."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if not AMX:
            return context.get_dummy_value()
        weights, paired, dim, o = args
        stride = b.shl(dim, I64(2))
        call(b, "tileloadd64", I8(_WEIGHTS), pointer(b, weights), I64(TILE_KEYS * 4))

        def column(n: Any, state: list[Any]) -> list[Any]:
            first = b.mul(n, I64(OUTPUTS * 4))
            call(b, "tileloadd64", I8(_SUMS), pointer(b, o, first), stride)
            call(b, "tileloadd64", I8(_VALUES), pointer(b, paired, first), stride)
            call(b, "tdpbf16ps", I8(_SUMS), I8(_WEIGHTS), I8(_VALUES))
            call(b, "tilestored64", I8(_SUMS), pointer(b, o, first), stride)
            return []

        _loop(b, b.udiv(dim, I64(OUTPUTS)), [], column)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@njit(cache=True, error_model="numpy")
def columns_of(rows: Any) -> Any:
    return np.int64(4) if rows <= 4 else np.int64(8)


@njit(cache=True, error_model="numpy")
def turn_few(q: Any, rows: Any, dim: Any, turned: Any) -> None:
    """q (rows, dim) -> pairs (dim / 2, columns_of(rows), 2), and up to 8 words more; columns without a row hold anything."""
    words = dim // 2
    for i in range(0, words, 8):
        tiles.transpose_8x8(q + i * 4, words, _F32, turned + i * columns_of(rows) * 4, columns_of(rows))


@njit(cache=True, error_model="numpy")
def score_keys(turned: Any, rows: Any, dim: Any, keys: Any, s: Any, room: Any) -> None:
    """s[r, 0:16] = query r . keys, and anything in rows up to 8; the rows of s TILE_KEYS floats apart."""
    if rows <= 4:
        _score_keys_4(turned, dim, keys, s, room)
    else:
        _score_keys_8(turned, dim, keys, s, room)


@njit(cache=True, error_model="numpy")
def pair_values(values: Any, count: Any, dim: Any, paired: Any, first: Any, last: Any) -> None:
    """`count` (at most 16) values that lie one after another, to pairs (16, dim, 2) from pair `first` on. If they are the
    last, zeros follow; beside an odd one, whose other weight is 0, lies itself."""
    for i in range(0, count, 2):
        other = values + min(i + 1, count - 1) * dim * 2
        tiles.pair_up(values + i * dim * 2, other, paired + (first + i // 2) * dim * 4, dim)
    if last:
        for i in range((first + (count + 1) // 2) * dim, INPUTS // 2 * dim):
            ir.store(paired, i, _ZERO, _F32)
