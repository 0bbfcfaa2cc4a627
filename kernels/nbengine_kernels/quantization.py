"""Rounding weights to 8 and 4 bits, the same in every dialect."""

import torch
from torch import Tensor

INT4_GROUP = 32
"""Inputs that share a scale and a zero in int4."""


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8, one scale an output row: weight (O, I) -> codes (O, I) int8 in [-127, 127], scale (O,) float32."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1).clamp_min(1e-10) / 127.0
    codes = (wide / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    return codes, scale


def dequantize_int8(codes: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    """codes (O, I) int8, scale (O,) -> (O, I) in dtype."""
    return (codes.float() * scale[:, None]).to(dtype)


def quantize_int4(weight: Tensor, group: int = INT4_GROUP) -> tuple[Tensor, Tensor, Tensor]:
    """int4 in groups along the input: weight (O, I) -> codes (O, I) uint8 in 0..15, scale and zero (O, I / group) float32.

    A code stands for (code - 8) * scale + zero, torch's own convention; scale and zero - 8 * scale are bfloat16 values.

    Raises:
        ValueError: I is no multiple of group.
    """
    rows, columns = weight.shape
    if columns % group:
        raise ValueError(f"int4 needs a multiple of {group} inputs, got {columns}.")
    wide = weight.float().view(rows, columns // group, group)
    low, high = wide.amin(dim=2), wide.amax(dim=2)
    scale = ((high - low) / 15.0).clamp_min(1e-10).to(torch.bfloat16).float()
    zero = low.to(torch.bfloat16).float() + 8.0 * scale
    codes = ((wide - zero[..., None]) / scale[..., None]).round_().add_(8).clamp_(0, 15)
    return codes.to(torch.uint8).view(rows, columns), scale, zero


def dequantize_int4(codes: Tensor, scale: Tensor, zero: Tensor, *, dtype: torch.dtype) -> Tensor:
    """codes (O, I), scale and zero (O, I / group) -> (O, I) in dtype."""
    rows, columns = codes.shape
    grouped = codes.float().view(rows, scale.shape[1], columns // scale.shape[1]) - 8.0
    return (grouped * scale[..., None] + zero[..., None]).view(rows, columns).to(dtype)
