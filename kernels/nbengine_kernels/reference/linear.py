"""Linear layers, plain and weight-only quantised."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nbengine_kernels.quantization import dequantize_int4, dequantize_int8, quantize_int4, quantize_int8


class PackedLinear:
    """`y = x @ weight.T + bias`, packed once, called often.

    Other dialects pack the weight into the form that is fastest on the device. This one keeps it plain; with
    quantization it keeps the rounded weight, so that the accuracy is the quantised one.

    Args:
        weight: (O, I) float32, bfloat16 or float16. The caller may drop it afterwards.
        bias: (O,) in the dtype of weight, or None.
        quantization: None; "int8" (symmetric, one scale an output row); "int4" (a scale and a zero a group of 32
            inputs).

    Source: row-wise int8, Dettmers et al. 2022; group-wise int4 as in GPTQ (Frantar et al. 2022), rounded to nearest.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, quantization: Literal["int8", "int4"] | None = None
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.quantization = quantization
        self.bias = bias
        match quantization:
            case None:
                self.weight = weight
            case "int8":
                self.weight = dequantize_int8(*quantize_int8(weight), dtype=weight.dtype)
            case "int4":
                self.weight = dequantize_int4(*quantize_int4(weight), dtype=weight.dtype)
            case _:
                raise ValueError(f"Quantization {quantization!r} is not known. Choose None, 'int8' or 'int4'.")

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x: (M, I), rows may be strided. Returns (M, O) in x's dtype, in `out` where that is given."""
        y: Tensor = F.linear(x, self.weight, self.bias)
        return y if out is None else out.copy_(y)

    def take_rows(self, indices: Tensor) -> Tensor:
        """indices: (T,) int32. Returns rows (T, I) of the weight: the embedding where the head is tied to it."""
        return F.embedding(indices, self.weight)

    def nbytes(self) -> int:
        """Bytes that the packed weight and the bias take."""
        return sum(t.numel() * t.element_size() for t in (self.weight, self.bias) if isinstance(t, torch.Tensor))
