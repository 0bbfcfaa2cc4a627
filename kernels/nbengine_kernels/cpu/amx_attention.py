"""The two products of attention by the processor's tiles (see `amx`): bfloat16 keys and values, a piece of many rows.

Queries lie as `many_rows` turns them, in pairs, which is what a B tile is; so do the weights that its softmax leaves. Keys
are A tiles as they lie in the cache, 16 at a time. Values must be turned, 32 keys at a time.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from nbengine_kernels.cpu import ir, tiles
from nbengine_kernels.cpu.amx import INPUTS, OUTPUTS, TILE_BYTES, write_product
from nbengine_kernels.cpu.blocks import TILE_KEYS
from nbengine_kernels.cpu.ir import I64
from nbengine_kernels.cpu.runtime import AMX, FLOAT32
from nbengine_kernels.cpu.tiles import COLUMNS

_F32 = FLOAT32
_ZERO = np.float32(0.0)


def _make_columns(add: bool) -> Any:
    """C[0:16, 0 : 16 * vectors] (+)= A[0:16, 0 : 32 * steps] @ B; the rows of A `stride` bytes apart, those of B, in pairs,
    and of C COLUMNS words."""

    @intrinsic
    def columns(typingctx: Any, a: Any, stride: Any, right: Any, steps: Any, c: Any, vectors: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            a, stride, right, steps, c, vectors = args
            after = b.append_basic_block("after")
            for width in range(COLUMNS // OUTPUTS, 0, -1) if AMX else ():
                fits, less = b.append_basic_block(f"vectors_{width}"), b.append_basic_block("less")
                b.cbranch(b.icmp_signed(">=", vectors, I64(width)), fits, less)
                b.position_at_end(fits)
                rights = [b.add(right, I64(n * TILE_BYTES)) for n in range(width)]
                write_product(b, steps, [a], stride, rights, COLUMNS * 4, [c], COLUMNS * 4, add=add)
                b.branch(after)
                b.position_at_end(less)
            b.branch(after)
            b.position_at_end(after)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), codegen

    return columns


score_columns, _add_columns = _make_columns(add=False), _make_columns(add=True)


@njit(cache=True, error_model="numpy")
def add_values(paired: Any, dim: Any, s: Any, count: Any, o: Any, vectors: Any) -> None:
    """o[d, r] += the sum over j < count of values, which lie in pairs (count / 2, dim, 2), times weights, which do so too
    (count / 2, COLUMNS, 2). Both, and what follows the values, have room up to TILE_KEYS."""
    words, steps = TILE_KEYS // 2, (count + INPUTS - 1) // INPUTS
    turned = paired + words * dim * 4
    for j in range((count + 1) // 2, steps * INPUTS // 2):  # there is nothing: no weight, and no value
        for i in range(dim):
            ir.store(paired, j * dim + i, _ZERO, _F32)
        for r in range(vectors * ir.LANES):
            ir.store(s, j * COLUMNS + r, _ZERO, _F32)
    for j in range(0, steps * INPUTS // 2, 16):
        for d in range(0, dim, 16):
            tiles.transpose_16x16(paired + (j * dim + d) * 4, dim, _F32, turned + (d * words + j) * 4, words)
    for d in range(0, dim, 16):
        _add_columns(turned + d * words * 4, words * 4, s, steps, o + d * COLUMNS * 4, vectors)
