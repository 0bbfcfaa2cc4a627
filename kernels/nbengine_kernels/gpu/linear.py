"""Linear layers: cuBLAS or hipBLASLt through torch as they are, a Triton kernel over int8 or int4 weights."""

from typing import Literal

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from nbengine_kernels.gpu.interpreter import interpreted
from nbengine_kernels.quantization import INT4_GROUP, dequantize_int4, dequantize_int8, quantize_int4, quantize_int8

FEW_ROWS = 64
"""Rows up to which the product is bound by reading the weight; above, it is widened once and multiplied by BLAS."""
_COLUMNS, _DEPTH = 64, 32


@triton.jit
def quantized_linear_kernel(
    x, codes, scale, zero, bias, y, rows, columns, depth, x_stride, y_stride,
    INT4: tl.constexpr, HAS_BIAS: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """A program a (tile of rows, tile of outputs); the weight is widened tile by tile.

    codes: int8 (O, I), or for int4 (O, I / 2) bytes with the even input in the low half. scale: (O,), or (O, I / GROUP).
    """
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, DEPTH)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for base in range(0, depth, DEPTH):
        k = base + i
        left_fits = (m < rows)[:, None] & (k < depth)[None, :]
        left = tl.load(x + m.to(tl.int64)[:, None] * x_stride + k[None, :], mask=left_fits, other=0.0)
        if WIDEN:
            left = left.to(tl.float32)
        fits = (n < columns)[None, :] & (k < depth)[:, None]
        if INT4:
            both = tl.load(codes + n.to(tl.int64)[None, :] * (depth // 2) + k[:, None] // 2, mask=fits, other=0).to(tl.int32)
            code = ((both >> (k % 2 * 4)[:, None]) & 15) - 8
            group = n.to(tl.int64)[None, :] * (depth // GROUP) + k[:, None] // GROUP
            weight = code.to(tl.float32) * tl.load(scale + group, mask=fits, other=0.0)
            weight += tl.load(zero + group, mask=fits, other=0.0)
        else:
            weight = tl.load(codes + n.to(tl.int64)[None, :] * depth + k[:, None], mask=fits, other=0).to(tl.float32)
        acc += tl.dot(left, weight.to(left.dtype), input_precision="ieee")
    if not INT4:
        acc *= tl.load(scale + n, mask=n < columns, other=0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    target = y + m.to(tl.int64)[:, None] * y_stride + n[None, :]
    tl.store(target, acc.to(y.dtype.element_ty), mask=(m < rows)[:, None] & (n < columns)[None, :])


class PackedLinear:
    """As `reference.PackedLinear`."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, quantization: Literal["int8", "int4"] | None = None
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.quantization = quantization
        self.dtype = weight.dtype
        self.bias = bias
        self._weight: Tensor | None = None
        match quantization:
            case None:
                self._weight = weight
            case "int8":
                self._codes, self._scale = quantize_int8(weight)
                self._zero = self._scale
            case "int4":
                codes, self._scale, self._zero = quantize_int4(weight)
                self._codes = (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous()
            case _:
                raise ValueError(f"Quantization {quantization!r} is not known. Choose None, 'int8' or 'int4'.")

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x: (M, I), rows may be strided. Returns (M, O) in x's dtype, in `out` where that is given."""
        rows = x.shape[0]
        if self._weight is not None or rows == 0 or rows > FEW_ROWS:
            y: Tensor = F.linear(x, self._weight if self._weight is not None else self._widened(x.dtype), self.bias)
            return y if out is None else out.copy_(y)
        y = torch.empty((rows, self.out_features), dtype=x.dtype, device=x.device) if out is None else out
        tile = max(16, triton.next_power_of_2(rows))
        grid = (triton.cdiv(rows, tile), triton.cdiv(self.out_features, _COLUMNS))
        quantized_linear_kernel[grid](
            x, self._codes, self._scale, self._zero, self._scale if self.bias is None else self.bias, y,
            rows, self.out_features, self.in_features, x.stride(0), y.stride(0),
            INT4=self.quantization == "int4", HAS_BIAS=self.bias is not None, GROUP=INT4_GROUP,
            ROWS=tile, COLUMNS=_COLUMNS, DEPTH=_DEPTH, WIDEN=interpreted(), num_warps=4, num_stages=2,
        )  # fmt: skip
        return y

    def take_rows(self, indices: Tensor) -> Tensor:
        """See `reference.PackedLinear.take_rows`."""
        if self._weight is not None:
            return F.embedding(indices, self._weight)
        return self._widened(self.dtype, indices)

    def nbytes(self) -> int:
        """Bytes that the weight and the bias take."""
        held = [self._weight, self.bias] if self._weight is not None else [self._codes, self._scale, self._zero, self.bias]
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def _widened(self, dtype: torch.dtype, rows: Tensor | slice = slice(None)) -> Tensor:
        """The weight, or these rows of it."""
        codes, scale = self._codes[rows], self._scale[rows]
        if self.quantization == "int8":
            return dequantize_int8(codes, scale, dtype=dtype)
        both = torch.stack((codes & 15, codes >> 4), dim=-1).view(len(codes), self.in_features)
        return dequantize_int4(both, scale, self._zero[rows], dtype=dtype)
