"""Gated activations."""

from typing import Any, Literal

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.mathematics import LOOSE, erf, tanh
from nbengine_kernels.cpu.runtime import rows_of, tag_of, workers_for
from nbengine_kernels.reference import activation as reference

SILU, _GELU, _GELU_TANH = 0, 1, 2
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_SQRT_HALF = np.float32(0.7071067811865476)
_SQRT_2_OVER_PI, _CUBE = np.float32(0.7978845608028654), np.float32(0.044715)


@v.inline
def _silu_part(gate: Any, up: Any, target: Any, c: Any, count: Any, tag: Any, y_tag: Any) -> None:
    g = v.load_some(gate, c, count, tag)
    y = g * v.sigmoid(g) * v.load_some(up, c, count, tag)
    v.store_some(target, c, v.rounded(y, tag), count, y_tag)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def gated_rows(
    x: Any, x_stride: Any, y: Any, y_stride: Any, width: Any, kind: Any, first: Any, last: Any, tag: Any, y_tag: Any
) -> None:
    """Rows first..last of x (rows, 2 width) by `tag`; y is rounded to `tag`, kept as `y_tag`."""
    for r in range(first, last):
        gate = x + r * x_stride * ir.size(tag)
        up, target = gate + width * ir.size(tag), y + r * y_stride * ir.size(y_tag)
        if r + 1 < last:  # what another core wrote comes slowly
            ir.prefetch(gate + x_stride * ir.size(tag), 2 * width * ir.size(tag))
        if kind == SILU:
            full = width // ir.LANES * ir.LANES
            for c in range(0, full, ir.LANES):
                _silu_part(gate, up, target, c, ir.LANES, tag, y_tag)
            if full < width:
                _silu_part(gate, up, target, full, width - full, tag, y_tag)
        elif kind == _GELU:
            for c in range(width):
                g = ir.load(gate, c, tag)
                ir.store(target, c, ir.rounded(_HALF * g * (_ONE + erf(g * _SQRT_HALF)) * ir.load(up, c, tag), tag), y_tag)
        else:
            for c in range(width):
                g = ir.load(gate, c, tag)
                inner = _SQRT_2_OVER_PI * (g + _CUBE * g * g * g)
                ir.store(target, c, ir.rounded(_HALF * g * (_ONE + tanh(inner)) * ir.load(up, c, tag), tag), y_tag)


@njit(cache=True, error_model="numpy", parallel=True)
def _parallel(
    x: Any, x_stride: Any, y: Any, y_stride: Any, width: Any, kind: Any, rows: Any, tag: Any, workers: Any
) -> None:
    for w in prange(workers):
        gated_rows(x, x_stride, y, y_stride, width, kind, rows * w // workers, rows * (w + 1) // workers, tag, tag)


def _run(x: Tensor, out: Tensor | None, kind: int) -> Tensor | None:
    """None where a dtype or a stride does not fit."""
    tag = tag_of(x)
    if tag is None or x.dim() != 2 or not rows_of(x) or (out is not None and (out.dtype != x.dtype or not rows_of(out))):
        return None
    rows, width = x.shape[0], x.shape[1] // 2
    y = torch.empty((rows, width), dtype=x.dtype) if out is None else out
    workers = workers_for(rows * width * 4)
    if workers == 1:
        gated_rows(x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), width, kind, 0, rows, tag, tag)
    else:
        _parallel(x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), width, kind, rows, tag, workers)
    return y


def silu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """As `reference.silu_and_mul`; float32 and bfloat16 here, other dtypes and strides there."""
    y = _run(x, out, SILU)
    return reference.silu_and_mul(x, out) if y is None else y


def gelu_and_mul(x: Tensor, approximate: Literal["none", "tanh"] = "none", out: Tensor | None = None) -> Tensor:
    """As `reference.gelu_and_mul`; float32 and bfloat16 here, other dtypes and strides there."""
    y = _run(x, out, _GELU_TANH if approximate == "tanh" else _GELU)
    return reference.gelu_and_mul(x, approximate, out) if y is None else y
