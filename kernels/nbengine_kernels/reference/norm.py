"""Root-mean-square normalisation."""

from typing import overload

import torch
from torch import Tensor


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
    """`x / sqrt(mean(x²) + eps) * weight` for each row, after adding `residual` where one is given.

    The sum x + residual is rounded to x's dtype and normalised as rounded, so that the fused call gives what the two
    calls would. Squares are summed, and the scaling done, in float32; the result is rounded once.

    Args:
        x: (T, C); rows may be strided, a row contiguous.
        weight: (C,).
        eps: added to the mean of the squares.
        residual: (T, C), the dtype of x, or None.
        out: (T, C) for the result; may be x itself.
        residual_out: (T, C) for the sum; may be residual itself. A new tensor without it.

    Returns:
        y, or (y, x + residual) where a residual is given.

    Source: Zhang and Sennrich 2019; added residual as in vLLM's fused_add_rms_norm.
    """
    total = x if residual is None else x + residual
    wide = total.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
    y = wide.to(x.dtype) if out is None else out.copy_(wide)
    if residual is None:
        return y
    return y, (total if residual_out is None else residual_out.copy_(total))
