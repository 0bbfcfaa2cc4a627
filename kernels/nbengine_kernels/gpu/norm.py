"""Root-mean-square normalisation, a program a row."""

from typing import overload

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_norm_kernel(
    x, residual, weight, y, total, x_stride, residual_stride, y_stride, total_stride, eps, width,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    inside = c < width
    value = tl.load(x + row * x_stride + c, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    if ADD:
        wide += tl.load(residual + row * residual_stride + c, mask=inside, other=0.0).to(tl.float32)
        rounded = wide.to(value.dtype)
        tl.store(total + row * total_stride + c, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
    scaled = wide * factor * tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * y_stride + c, scaled.to(value.dtype), mask=inside)


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
    """As `reference.rms_norm`."""
    rows, width = x.shape
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device) if out is None else out
    add = residual is not None
    other = x if residual is None else residual
    total = y
    if add:
        total = torch.empty((rows, width), dtype=x.dtype, device=x.device) if residual_out is None else residual_out
    if rows:
        block = triton.next_power_of_2(width)
        rms_norm_kernel[(rows,)](
            x, other, weight, y, total, x.stride(0), other.stride(0), y.stride(0), total.stride(0), float(eps), width,
            ADD=add, BLOCK=block, num_warps=4 if block <= 4096 else 8,
        )  # fmt: skip
    return (y, total) if add else y
