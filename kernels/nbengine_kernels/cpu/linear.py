"""Linear layers, packed once into panels (see `panels`), multiplied by one kernel for every row count.

For one row the kernel reads the weight once, in order, at memory speed; for more it widens each weight in registers and
uses it for four rows. Where the processor multiplies bfloat16 itself, oneDNN is faster from `FEW_ROWS` rows on: its own
packing is made at the first such call, so a process that decodes a single request never pays for it.
"""

import sys
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.mathematics import LOOSE
from nbengine_kernels.cpu.panels import (
    WIDTH,
    pack_nibbles,
    pack_pairs,
    pack_rows,
    pack_scales,
    panel_tile_1x1,
    panel_tile_1x2,
    panel_tile_2x1,
    panel_tile_4x1,
)
from nbengine_kernels.cpu.runtime import BFLOAT16, FLOAT32, rows_of, tag_of, threads
from nbengine_kernels.quantization import INT4_GROUP, quantize_int4, quantize_int8

_F32 = FLOAT32
# The functions around tiles are compiled without fast-math: numba would spread the flags over the tiles' own sums.
_INT8, _INT4 = np.int8(0), np.uint8(0)
AHEAD_BYTES = 4096  # how far before one row's product its panels are asked for: a page, where the hardware stops
FEW_ROWS = 4
"""Rows up to which the panel kernel beats oneDNN where that has bfloat16 in hardware."""


@njit(cache=True, error_model="numpy")
def _store_tile(
    tile: Any, rows: Any, width: Any, scale: Any, bias: Any, y: Any, y_stride: Any, first: Any, columns: Any, tag: Any
) -> None:
    """Tile (rows, width) * scale + bias -> y[0:rows, first : first + width], but no further than `columns`."""
    n = min(width, columns - first)
    for r in range(rows):
        row, target = tile + r * width * 4, y + (r * y_stride + first) * ir.size(tag)
        if scale != 0:
            for c in range(n):
                ir.store(row, c, ir.load(row, c, _F32) * ir.load(scale, first + c, _F32), _F32)
        if bias != 0:
            for c in range(n):
                ir.store(row, c, ir.load(row, c, _F32) + ir.load(bias, first + c, _F32), _F32)
        for c in range(n):
            ir.store(target, c, ir.load(row, c, _F32), tag)


@njit(cache=True, error_model="numpy")
def multiply_units(
    wide: Any, depth: Any, rows: Any, panels: Any, panel_bytes: Any, groups: Any, sums: Any, scale: Any, bias: Any,
    y: Any, y_stride: Any, columns: Any, unit: Any, counter: Any, tag: Any, weight_tag: Any,
) -> None:  # fmt: skip
    """Draw units of `unit` panels until none is left. wide: (rows, depth) float32, depth even."""
    count = (columns + WIDTH - 1) // WIDTH
    memory = np.empty(4 * 2 * WIDTH, dtype=np.float32)
    tile = memory.ctypes.data
    pairs, group_bytes = depth // 2, groups * 2 * WIDTH * 2
    blocks, slow = (rows + 3) // 4, np.int64(0)
    while 2 << slow <= blocks:
        slow += 1
    mine = ir.take_ticket(counter) * unit
    while mine < count:
        following = ir.take_ticket(counter) * unit  # drawn early, to know what to fetch meanwhile
        p, last = mine, min(count, mine + unit)
        while p < last:
            panel = panels + p * panel_bytes
            step = 2 if rows == 1 and last - p >= 2 else 1
            after = p + step if p + step < last else min(following, count - 1)
            # one row streams through memory, in order; with more there is time to fetch the whole next panel
            ahead = panel + AHEAD_BYTES if rows == 1 else panels + after * panel_bytes
            # int4 scales are per group and used in the tile; others are per output and used on the way out
            inner, outer = (scale + p * group_bytes, np.int64(0)) if groups > 0 else (np.int64(0), scale)
            r = 0
            while r < rows:
                a, s, out = wide + r * depth * 4, sums + r * groups * 4, y + r * y_stride * ir.size(tag)
                n = 4 if rows - r >= 4 else (2 if rows - r >= 2 else 1)
                if n == 4:
                    panel_tile_4x1(a, depth, panel, panel_bytes, weight_tag, tile, pairs, inner, s, ahead, slow)
                elif n == 2:
                    panel_tile_2x1(a, depth, panel, panel_bytes, weight_tag, tile, pairs, inner, s, ahead, slow)
                elif step == 2:
                    panel_tile_1x2(a, depth, panel, panel_bytes, weight_tag, tile, pairs, inner, s, ahead, slow)
                else:
                    panel_tile_1x1(a, depth, panel, panel_bytes, weight_tag, tile, pairs, inner, s, ahead, slow)
                _store_tile(tile, n, step * WIDTH, outer, bias, out, y_stride, p * WIDTH, columns, tag)
                ahead += panel_bytes >> slow
                r += n
            p += step
        ir.finish_ticket(counter)
        mine = following
    ir.keep(memory)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _widen_row(x: Any, inputs: Any, wide: Any, depth: Any, sums: Any, groups: Any, tag: Any) -> None:
    for i in range(inputs):
        ir.store(wide, i, ir.load(x, i, tag), _F32)
    for i in range(inputs, depth):
        ir.store(wide, i, np.float32(0.0), _F32)
    group_sums(wide, sums, groups)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def group_sums(wide: Any, sums: Any, groups: Any) -> None:
    """What int4's offsets are multiplied by: the sum of each group of inputs of one row."""
    for g in range(groups):
        total = np.float32(0.0)
        for i in range(g * INT4_GROUP, (g + 1) * INT4_GROUP):
            total += ir.load(wide, i, _F32)
        ir.store(sums, g, total, _F32)


@njit(cache=True, error_model="numpy", parallel=True)
def _linear(
    x: Any, x_stride: Any, rows: Any, inputs: Any, panels: Any, panel_bytes: Any, groups: Any, scale: Any, bias: Any,
    y: Any, y_stride: Any, columns: Any, unit: Any, tag: Any, weight_tag: Any, workers: Any,
) -> None:  # fmt: skip
    depth = (inputs + 1) // 2 * 2
    memory = np.empty(rows * (depth + groups) + 1, dtype=np.float32)
    wide = memory.ctypes.data
    sums = wide + rows * depth * 4
    for r in range(rows):
        source = x + r * x_stride * ir.size(tag)
        _widen_row(source, inputs, wide + r * depth * 4, depth, sums + r * groups * 4, groups, tag)
    counter = np.zeros(ir.COUNTER_BYTES // 8, dtype=np.int64)
    address = counter.ctypes.data
    for _ in prange(workers):
        multiply_units(
            wide, depth, rows, panels, panel_bytes, groups, sums, scale, bias, y, y_stride, columns, unit, address,
            tag, weight_tag,
        )  # fmt: skip
    ir.keep(memory)
    ir.keep(counter)


@cache
def _multiplies_bfloat16() -> bool:
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(available and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear:
    """As `reference.PackedLinear`; float32, bfloat16, int8 and int4 are packed, float16 is kept plain.

    From the panel kernel a row's result is the same to the last bit whatever the other rows are.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, quantization: Literal["int8", "int4"] | None = None
    ) -> None:
        if quantization not in (None, "int8", "int4"):
            raise ValueError(f"Quantization {quantization!r} is not known. Choose None, 'int8' or 'int4'.")
        self.out_features, self.in_features = weight.shape
        self.quantization = quantization
        self.dtype = weight.dtype
        self.bias = None if bias is None else bias.detach().to(weight.dtype)
        self._wide_bias = None if bias is None else bias.detach().float().contiguous()
        self._panels: Tensor | None = None
        self._scale: Tensor | None = None
        self._onednn: Tensor | None = None
        self._plain: Tensor | None = None
        self.weight_tag: Any = _F32
        self._pack(weight.detach())
        onednn = quantization is None and self.dtype == torch.bfloat16 and _multiplies_bfloat16()
        self.most_rows = FEW_ROWS if onednn else sys.maxsize  # rows up to which the panel kernel serves
        self._arguments: tuple[int, ...] = ()
        self._unit = 0
        panels = self._panels
        if panels is not None:
            count = panels.shape[0]
            self._arguments = (
                panels.data_ptr(), panels.numel() // count * panels.element_size(),
                self.in_features // INT4_GROUP if quantization == "int4" else 0,
                0 if self._scale is None else self._scale.data_ptr(),
                0 if self._wide_bias is None else self._wide_bias.data_ptr(),
            )  # fmt: skip
            self._unit = 2 if count <= 256 else 8  # small matrices: fine shares; large ones: fewer draws

    @property
    def in_panels(self) -> bool:
        return self._panels is not None

    def record(self) -> tuple[int, ...]:
        """Address and numbers of the panels, as `stack.MATRIX` has them."""
        return (*self._arguments, self.in_features, self.out_features, self._unit)

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x: (M, I), rows may be strided. Returns (M, O) in x's dtype, in `out` where that is given."""
        rows, tag = x.shape[0], tag_of(x)
        if self._panels is not None and tag is not None and rows <= self.most_rows:
            return self._from_panels(x, out, tag)
        if x.dtype == self.dtype and self._plain is None and rows > 0:
            if self._onednn is None:
                self._onednn = torch.ops.mkldnn._reorder_linear_weight(self._unpacked(), 16)
            y = torch.ops.mkldnn._linear_pointwise(x, self._onednn, self.bias, "none", [], "")
        else:
            y = F.linear(x, self._unpacked().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        return y if out is None else out.copy_(y)

    def take_rows(self, indices: Tensor) -> Tensor:
        """See `reference.PackedLinear.take_rows`; straight from the panels, where a second copy would be the alternative."""
        if self._panels is None or self.quantization is not None:
            return F.embedding(indices, self._unpacked().to(self.dtype))
        depth = self._panels.shape[1]  # inputs, or pairs of them
        panel, column = indices.long() // WIDTH, indices.long() % WIDTH
        places = (panel[:, None] * depth + torch.arange(depth)) * WIDTH + column[:, None]  # (T, depth)
        flat = self._panels.view(self._panels.shape[0] * depth * WIDTH, -1)
        rows = flat.index_select(0, places.flatten())
        return rows.view(len(indices), depth * flat.shape[1])[:, : self.in_features].contiguous()

    def nbytes(self) -> int:
        """Bytes that the packed weight and the bias take; oneDNN's second copy included once it is made."""
        held = (self._panels, self._scale, self._plain, self._wide_bias)
        size = sum(t.numel() * t.element_size() for t in held if t is not None)
        if self._onednn is not None:
            size += self.out_features * self.in_features * self.dtype.itemsize
        return size

    def _pack(self, weight: Tensor) -> None:
        if self.quantization == "int8":
            codes, scale = quantize_int8(weight)
            self._panels, self._scale, self.weight_tag = pack_rows(codes), scale.contiguous(), _INT8
        elif self.quantization == "int4":
            codes, scale, zero = quantize_int4(weight)
            self._panels, self._scale, self.weight_tag = pack_nibbles(codes), pack_scales(scale, zero), _INT4
        elif self.dtype == torch.bfloat16:
            self._panels, self.weight_tag = pack_pairs(weight), BFLOAT16
        elif self.dtype == torch.float32:
            self._panels = pack_rows(weight)
        else:
            self._plain = weight.contiguous()

    def _from_panels(self, x: Tensor, out: Tensor | None, tag: Any) -> Tensor:
        rows = x.shape[0]
        fits = out is not None and out.dtype == x.dtype and rows_of(out)
        y = out if fits and out is not None else torch.empty((rows, self.out_features), dtype=x.dtype)
        if not rows_of(x):
            x = x.contiguous()
        _linear(
            x.data_ptr(), x.stride(0), rows, self.in_features, *self._arguments, y.data_ptr(), y.stride(0),
            self.out_features, self._unit, tag, self.weight_tag, threads(),
        )  # fmt: skip
        return y if out is None or out is y else out.copy_(y)

    def _unpacked(self) -> Tensor:
        """The plain weight (O, I) again."""
        if self._plain is not None:
            return self._plain
        assert self._panels is not None
        if self.quantization is not None:
            eye = torch.eye(self.in_features)
            return (self._from_panels(eye, None, _F32) - (0 if self._wide_bias is None else self._wide_bias)).T
        outputs_first = self._panels.transpose(1, 2)  # (panels, 16, I') or (panels, 16, I' / 2, 2)
        flat = outputs_first.reshape(-1, outputs_first[0, 0].numel())
        return flat[: self.out_features, : self.in_features]
