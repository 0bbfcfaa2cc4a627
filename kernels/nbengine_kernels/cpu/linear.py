"""Linear layers, packed once.

bfloat16: the weight lies in panels of 16 outputs, [O / 16][I / 2][16][2], which one kernel reads in order at memory
speed for one row and reuses from cache for more. Where the machine multiplies bfloat16 in hardware, oneDNN's own packing
serves from `FEW_ROWS` on (it is made at the first such call, so a process that only decodes one request never pays
for it). float32: oneDNN's packing. int8 and int4, weight only: torch's kernels for few rows; for many, the weight is
widened for the call and multiplied as usual.
"""

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.mathematics import LOOSE
from nbengine_kernels.cpu.runtime import FLOAT32, rows_of, tag_of, threads
from nbengine_kernels.quantization import INT4_GROUP, dequantize_int4, dequantize_int8, quantize_int4, quantize_int8

_F32 = FLOAT32
FEW_ROWS = 4
"""Rows up to which the panel kernel beats oneDNN's bfloat16."""
FEW_QUANTIZED_ROWS = 8
"""Rows up to which weight-only kernels beat widening the weight."""
_PANEL = 16


@njit(cache=True, fastmath=LOOSE)
def _store_tile(tile: Any, rows: Any, width: Any, bias: Any, y: Any, y_stride: Any, first: Any, columns: Any, tag: Any) -> None:
    """Tile (rows, width) + bias -> y[0:rows, first : first + width], but no further than `columns`."""
    n = min(width, columns - first)
    for r in range(rows):
        row, target = tile + r * width * 4, y + (r * y_stride + first) * ir.size(tag)
        if bias != 0:
            for c in range(n):
                ir.store(target, c, ir.load(row, c, _F32) + ir.load(bias, first + c, tag), tag)
        else:
            for c in range(n):
                ir.store(target, c, ir.load(row, c, _F32), tag)


@njit(cache=True, fastmath=LOOSE)
def _panel_worker(
    wide: Any, depth: Any, rows: Any, panels: Any, bias: Any, y: Any, y_stride: Any, columns: Any, unit: Any, counter: Any, tag: Any
) -> None:
    """Draw units of `unit` panels until none is left. wide: (rows, depth) float32, depth even."""
    count = (columns + _PANEL - 1) // _PANEL
    panel_bytes = depth * _PANEL * 2
    memory = np.empty(4 * 2 * _PANEL, dtype=np.float32)
    tile = memory.ctypes.data
    while True:
        first = ir.take_ticket(counter) * unit
        if first >= count:
            return
        last = min(count, first + unit)
        r = 0
        while r < rows:
            a, out = wide + r * depth * 4, y + r * y_stride * ir.size(tag)
            left = rows - r
            n = 4 if left >= 4 else (2 if left >= 2 else 1)
            p = first
            while p < last:
                panel, step = panels + p * panel_bytes, 1
                if n == 4:
                    ir.panel_tile_4x1(a, depth, panel, np.int64(0), tile, depth // 2)
                elif n == 2:
                    ir.panel_tile_2x1(a, depth, panel, np.int64(0), tile, depth // 2)
                elif last - p >= 2:
                    ir.panel_tile_1x2(a, depth, panel, depth * _PANEL // 2, tile, depth // 2)
                    step = 2
                else:
                    ir.panel_tile_1x1(a, depth, panel, np.int64(0), tile, depth // 2)
                _store_tile(tile, n, step * _PANEL, bias, out, y_stride, p * _PANEL, columns, tag)
                p += step
            r += n


@njit(cache=True, parallel=True, fastmath=LOOSE)
def _panel_linear(
    x: Any, x_stride: Any, rows: Any, inputs: Any, panels: Any, bias: Any, y: Any, y_stride: Any, columns: Any,
    unit: Any, tag: Any, workers: Any,
) -> None:  # fmt: skip
    depth = (inputs + 1) // 2 * 2
    memory = np.zeros(rows * depth + 1, dtype=np.float32)
    wide = memory.ctypes.data
    for r in range(rows):
        for i in range(inputs):
            ir.store(wide, r * depth + i, ir.load(x, r * x_stride + i, tag), _F32)
    counter = np.zeros(1, dtype=np.int64)
    address = counter.ctypes.data
    for _ in prange(workers):
        _panel_worker(wide, depth, rows, panels, bias, y, y_stride, columns, unit, address, tag)


def pack_panels(weight: Tensor) -> Tensor:
    """(O, I) bfloat16 -> (ceil(O / 16), ceil(I / 2), 16, 2) bfloat16, padded with zeros."""
    rows, columns = weight.shape
    padded = F.pad(weight, (0, columns % 2, 0, -rows % _PANEL))
    return padded.view(-1, _PANEL, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()


def _onednn_has(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear:
    """As `reference.PackedLinear`; float32 and bfloat16 are packed, float16 is kept plain.

    In bfloat16 a row's result from the panel kernel is the same to the last bit whatever the other rows are.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, quantization: Literal["int8", "int4"] | None = None
    ) -> None:
        if quantization not in (None, "int8", "int4"):
            raise ValueError(f"Quantization {quantization!r} is not known. Choose None, 'int8' or 'int4'.")
        self.out_features, self.in_features = weight.shape
        self.quantization = quantization
        self.dtype = weight.dtype
        self.bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()
        self._codes: tuple[Tensor, ...] = ()
        self._panels: Tensor | None = None
        self._onednn: Tensor | None = None
        self._plain: Tensor | None = None
        weight = weight.detach()
        if quantization is not None:
            self._quantize(weight)
        elif self.dtype == torch.bfloat16:
            self._panels = pack_panels(weight)
        elif self.dtype == torch.float32 and _onednn_has(torch.float32):
            self._onednn = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
        else:
            self._plain = weight.contiguous()

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x: (M, I), rows may be strided. Returns (M, O) in x's dtype, in `out` where that is given."""
        rows = x.shape[0]
        if self.quantization is not None:
            y = self._quantized(x) if 0 < rows <= FEW_QUANTIZED_ROWS else self._widened(x)
        elif self._panels is not None and x.dtype == self.dtype:
            if rows <= FEW_ROWS or not _onednn_has(torch.bfloat16):
                return self._from_panels(x, out)
            if self._onednn is None:
                self._onednn = torch.ops.mkldnn._reorder_linear_weight(self._unpacked(), 16)
            y = torch.ops.mkldnn._linear_pointwise(x, self._onednn, self.bias, "none", [], "")
        elif self._onednn is not None and x.dtype == self.dtype and rows > 0:
            y = torch.ops.mkldnn._linear_pointwise(x, self._onednn, self.bias, "none", [], "")
        else:
            y = F.linear(x, self._unpacked().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        return y if out is None else out.copy_(y)

    def nbytes(self) -> int:
        """Bytes that the packed weight and the bias take; oneDNN's second copy included once it is made."""
        held = [*self._codes, self._panels, self._plain, self.bias]
        size = sum(t.numel() * t.element_size() for t in held if t is not None)
        if self._onednn is not None:
            size += self.out_features * self.in_features * (4 if self.dtype == torch.float32 else 2)
        return size

    def _from_panels(self, x: Tensor, out: Tensor | None) -> Tensor:
        panels = self._panels
        assert panels is not None
        rows = x.shape[0]
        y = out if out is not None and out.dtype == x.dtype and rows_of(out) else torch.empty((rows, self.out_features), dtype=x.dtype)
        if not rows_of(x):
            x = x.contiguous()
        workers = threads()
        count = panels.shape[0]
        unit = 2 if count <= 64 * workers else 8
        bias = 0 if self.bias is None else self.bias.data_ptr()
        _panel_linear(
            x.data_ptr(), x.stride(0), rows, self.in_features, panels.data_ptr(), bias, y.data_ptr(), y.stride(0),
            self.out_features, unit, tag_of(x), workers,
        )  # fmt: skip
        return y if out is None or out is y else out.copy_(y)

    def _unpacked(self) -> Tensor:
        """The plain weight (O, I) again."""
        if self._panels is not None:
            return self._panels.transpose(1, 2).reshape(-1, self._panels.shape[1] * 2)[: self.out_features, : self.in_features]
        if self._plain is not None:
            return self._plain
        packed: Any = self._onednn
        weight: Tensor = packed.to_dense()
        return weight

    def _quantize(self, weight: Tensor) -> None:
        if self.quantization == "int8":
            codes, scale = quantize_int8(weight)
            self._codes = (codes, scale.to(torch.bfloat16))
            return
        codes, scale, zero = quantize_int4(weight)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
        pairs = torch.stack((scale, zero), dim=-1).transpose(0, 1).contiguous().to(torch.bfloat16)
        nibbles = codes[:, 0::2] | (codes[:, 1::2] << 4)
        self._codes = (packed, pairs, nibbles)

    def _quantized(self, x: Tensor) -> Tensor:
        narrow = x.to(torch.bfloat16).contiguous()
        if self.quantization == "int8":
            y = torch._weight_int8pack_mm(narrow, *self._codes)
        else:
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(narrow, self._codes[0], INT4_GROUP, self._codes[1])
        y = y.to(x.dtype)
        return y if self.bias is None else y.add_(self.bias)

    def _widened(self, x: Tensor) -> Tensor:
        dtype = torch.bfloat16 if x.dtype == torch.bfloat16 and _onednn_has(torch.bfloat16) else torch.float32
        if self.quantization == "int8":
            weight = dequantize_int8(self._codes[0], self._codes[1].float(), dtype=dtype)
        else:
            nibbles = self._codes[2]
            codes = torch.stack((nibbles & 15, nibbles >> 4), dim=-1).view(self.out_features, self.in_features)
            scale, zero = self._codes[1].float().permute(2, 1, 0)
            weight = dequantize_int4(codes, scale, zero, dtype=dtype)
        y = F.linear(x.to(dtype), weight, None if self.bias is None else self.bias.to(dtype))
        return y.to(x.dtype)
