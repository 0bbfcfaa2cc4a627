"""Gated activations: act(left half) * right half."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`silu(x[:, :F]) * x[:, F:]`.

    Args:
        x: (T, 2F); rows may be strided, a row contiguous. Float32 inside, rounded once.
        out: (T, F) contiguous, to write into.

    Returns:
        (T, F) in x's dtype.

    Source: SwiGLU, Shazeer 2020.
    """
    gate, up = x.float().chunk(2, dim=-1)
    return _finish(F.silu(gate) * up, x, out)


def gelu_and_mul(x: Tensor, approximate: Literal["none", "tanh"] = "none", out: Tensor | None = None) -> Tensor:
    """`gelu(x[:, :F]) * x[:, F:]`.

    Args:
        x: (T, 2F); rows may be strided, a row contiguous. Float32 inside, rounded once.
        approximate: "none" for the error function, "tanh" for its approximation.
        out: (T, F) contiguous, to write into.

    Returns:
        (T, F) in x's dtype.

    Source: GEGLU, Shazeer 2020; both forms of GELU, Hendrycks and Gimpel 2016.
    """
    gate, up = x.float().chunk(2, dim=-1)
    return _finish(F.gelu(gate, approximate=approximate) * up, x, out)


def _finish(y: Tensor, x: Tensor, out: Tensor | None) -> Tensor:
    return y.to(x.dtype) if out is None else out.copy_(y)
