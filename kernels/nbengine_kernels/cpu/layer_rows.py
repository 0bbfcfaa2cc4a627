"""The steps of a decoder layer that work on each row alone, for rows first..last. `stack` shares them out.

Rows are counted from the address that is given, which may be another than that of a whole matrix: a thread that keeps rows
first..last for itself gives the address that row 0 would have.
"""

from typing import Any

import numpy as np
from numba import njit

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.activation import SILU, gated_rows
from nbengine_kernels.cpu.linear import BLOCK_ROWS, TALLEST, group_sums
from nbengine_kernels.cpu.norm import norm_rows
from nbengine_kernels.cpu.rotary import turn_and_put
from nbengine_kernels.cpu.runtime import FLOAT32

_F32 = FLOAT32


@njit(cache=True, error_model="numpy")
def count_blocks(rows: Any, workers: Any) -> Any:
    """Into how many blocks of at most BLOCK_ROWS rows are cut: as many for each thread."""
    tiles, of_block = (rows + TALLEST - 1) // TALLEST, BLOCK_ROWS // TALLEST * workers
    return (tiles + of_block - 1) // of_block * workers


@njit(cache=True, error_model="numpy")
def block_of(rows: Any, blocks: Any, index: Any) -> Any:
    """First row and last, exclusive, of one of the blocks, which are whole tiles and differ by one at most."""
    tiles = (rows + TALLEST - 1) // TALLEST
    return tiles * index // blocks * TALLEST, min(rows, tiles * (index + 1) // blocks * TALLEST)


@njit(cache=True, error_model="numpy")
def sum_some(x: Any, sums: Any, matrix: Any, first: Any, last: Any, row_tag: Any) -> None:
    """The group sums that a product with `matrix` needs, if it does."""
    if matrix.groups > 0:
        for r in range(first, last):
            row = x + r * matrix.inputs * ir.size(row_tag)
            group_sums(row, sums + r * matrix.groups * 4, matrix.groups, row_tag)


@njit(cache=True, error_model="numpy")
def norm_some(
    x: Any, residual: Any, weight: Any, model: Any, y: Any, sums: Any, matrix: Any, first: Any, last: Any,
    tag: Any, row_tag: Any,
) -> None:  # fmt: skip
    """y = norm(residual += x), to be multiplied by `matrix`; x = 0: of residual alone."""
    width, nothing = model.hidden, np.int64(0)
    source, other = (x, residual) if x != 0 else (residual, nothing)
    norm_rows(source, width, other, width, weight, y, width, other, width, model.eps, width, first, last, tag, tag, row_tag)
    sum_some(y, sums, matrix, first, last, row_tag)


@njit(cache=True, error_model="numpy")
def turn_some(layer: Any, model: Any, job: Any, first: Any, last: Any, tag: Any) -> None:
    """Norm the query and key heads where the model does, turn them, write keys and values to their slots."""
    dim, heads, kv_heads = model.dim, model.heads, model.kv_heads
    step = ir.size(tag)
    stride = (heads + 2 * kv_heads) * dim
    query, key = job.inner, job.inner + heads * dim * step
    value = key + kv_heads * dim * step
    half = model.half if layer.rotary != 0 else np.int64(0)
    nothing = np.int64(0)
    if layer.query_norm != 0:
        for t in range(first, last):
            q, k = query + t * stride * step, key + t * stride * step
            norm_rows(
                q, dim, nothing, dim, layer.query_norm, q, dim, nothing, dim, model.eps, dim, nothing, heads, tag, tag, tag
            )
            norm_rows(
                k, dim, nothing, dim, layer.key_norm, k, dim, nothing, dim, model.eps, dim, nothing, kv_heads, tag, tag, tag
            )
    turn_and_put(
        job.positions, False, query, stride, key, stride, value, stride, model.cos_sin,
        layer.key_cache, layer.key_block, layer.value_cache, layer.value_block, job.slots,
        heads, kv_heads, dim, half, model.block_size, first, last, tag, _F32,
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def activate_some(mlp: Any, y: Any, sums: Any, down: Any, first: Any, last: Any, tag: Any, row_tag: Any) -> None:
    """y = silu(gate) * up, to be multiplied by `down`."""
    width = down.inputs
    gated_rows(mlp, 2 * width, y, width, width, SILU, first, last, tag, row_tag)
    sum_some(y, sums, down, first, last, row_tag)
