"""Root-mean-square normalisation, row by row, each row's sum kept in cache between its two passes."""

from typing import Any, overload

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.runtime import FLOAT32, rows_of, tag_of, workers_for
from nbengine_kernels.reference.norm import rms_norm as reference_rms_norm

_F32 = FLOAT32


@v.inline
def _add_part(source: Any, other: Any, target: Any, row: Any, c: Any, count: Any, tag: Any) -> Any:
    """Columns c .. c + count: the sum of what is at `source` and `other` to `target` and `row`; its squares."""
    x = v.load_some(source, c, count, tag)
    if other != 0:
        x = v.rounded(x + v.load_some(other, c, count, tag), tag)
        v.store_some(target, c, x, count, tag)
    v.store_some(row, c, x, count, _F32)
    return x * x


@v.inline
def _scale_part(
    row: Any, factor: Any, weight: Any, target: Any, c: Any, count: Any, tag: Any, w_tag: Any, y_tag: Any
) -> None:
    scaled = v.load_some(row, c, count, _F32) * factor * v.load_some(weight, c, count, w_tag)
    v.store_some(target, c, v.rounded(scaled, tag), count, y_tag)


@njit(cache=True, error_model="numpy")
def norm_rows(
    x: Any, x_stride: Any, residual: Any, residual_stride: Any, weight: Any, y: Any, y_stride: Any,
    total: Any, total_stride: Any, eps: Any, width: Any, first: Any, last: Any, tag: Any, weight_tag: Any, y_tag: Any,
) -> None:  # fmt: skip
    """Rows first..last; `residual` and `total` are 0 where there is none. y is rounded to `tag`, kept as `y_tag`."""
    scratch = np.empty(width, dtype=np.float32)
    row, step = scratch.ctypes.data, ir.size(tag)
    full, rest = width // ir.LANES * ir.LANES, width % ir.LANES
    for r in range(first, last):
        source, target = x + r * x_stride * step, total + r * total_stride * step
        other = residual + r * residual_stride * step if residual != 0 else np.int64(0)
        if r + 1 < last:  # what another core wrote comes slowly
            ir.prefetch(source + x_stride * step, width * step)
            if residual != 0:
                ir.prefetch(other + residual_stride * step, width * step)
        squares = v.splat(np.float32(0.0))
        for c in range(0, full, ir.LANES):
            squares = squares + _add_part(source, other, target, row, c, ir.LANES, tag)
        if rest > 0:
            squares = squares + _add_part(source, other, target, row, full, rest, tag)
        factor = v.splat(np.float32(1.0) / np.sqrt(v.total(squares) / np.float32(width) + np.float32(eps)))
        target = y + r * y_stride * ir.size(y_tag)
        for c in range(0, full, ir.LANES):
            _scale_part(row, factor, weight, target, c, ir.LANES, tag, weight_tag, y_tag)
        if rest > 0:
            _scale_part(row, factor, weight, target, full, rest, tag, weight_tag, y_tag)
    ir.keep(scratch)


@njit(cache=True, error_model="numpy", parallel=True)
def _parallel(
    x: Any, x_stride: Any, residual: Any, residual_stride: Any, weight: Any, y: Any, y_stride: Any,
    total: Any, total_stride: Any, eps: Any, width: Any, rows: Any, tag: Any, weight_tag: Any, workers: Any,
) -> None:  # fmt: skip
    for w in prange(workers):
        norm_rows(
            x, x_stride, residual, residual_stride, weight, y, y_stride, total, total_stride, eps, width,
            rows * w // workers, rows * (w + 1) // workers, tag, weight_tag, tag,
        )  # fmt: skip


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: None = None, *, out: Tensor | None = None) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor,
    *,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    *,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `reference.rms_norm`; float32 and bfloat16 here, other dtypes and strides there."""
    tag, weight_tag = tag_of(x), tag_of(weight)
    given = [t for t in (residual, out, residual_out) if t is not None]
    fits = all(t.dtype == x.dtype and t.dim() == 2 and rows_of(t) for t in (x, *given))
    if tag is None or weight_tag is None or not fits or not weight.is_contiguous():
        if residual is None:
            return reference_rms_norm(x, weight, eps, out=out)
        return reference_rms_norm(x, weight, eps, residual, out=out, residual_out=residual_out)
    rows, width = x.shape
    y = torch.empty((rows, width), dtype=x.dtype) if out is None else out
    if residual is None:
        total, extra = y, (0, 0, 0, 0)
    else:
        total = torch.empty((rows, width), dtype=x.dtype) if residual_out is None else residual_out
        extra = (residual.data_ptr(), residual.stride(0), total.data_ptr(), total.stride(0))
    head = (
        x.data_ptr(),
        x.stride(0),
        *extra[:2],
        weight.data_ptr(),
        y.data_ptr(),
        y.stride(0),
        *extra[2:],
        float(eps),
        width,
    )
    workers = workers_for(rows * width)
    if workers == 1:
        norm_rows(*head, 0, rows, tag, weight_tag, tag)
    else:
        _parallel(*head, rows, tag, weight_tag, workers)
    return y if residual is None else (y, total)
