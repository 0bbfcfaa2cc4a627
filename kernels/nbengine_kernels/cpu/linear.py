"""Linear layers, packed once into panels (see `panels`), multiplied by one kernel for every row count.

For one row the kernel reads the weight once, in order, at memory speed. With more, a tile takes up to `TALLEST` rows at a
time through a panel, and the rows come in blocks that stay in the cache while panel after panel passes. Tiles are of
registers (`panels`), or, of bfloat16 where the processor has them, its own (`amx_linear`).
"""

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor

from nbengine_kernels.cpu import amx_linear, ir
from nbengine_kernels.cpu.amx import INPUTS, OUTPUTS, TILE, by_tiles
from nbengine_kernels.cpu.mathematics import LOOSE
from nbengine_kernels.cpu.panels import (
    HEIGHTS,
    PANELS_OF_ONE_ROW,
    WIDTH,
    one_row_tile,
    pack_int4,
    pack_outputs,
    pack_pairs,
    pack_rows,
    panel_tile,
)
from nbengine_kernels.cpu.runtime import AMX, BFLOAT16, BFLOAT16_PRODUCTS, FLOAT32, rows_of, tag_of, threads, workers_for
from nbengine_kernels.pages import own_pages
from nbengine_kernels.quantization import INT4_GROUP, quantize_int4, quantize_int8

_F32 = FLOAT32
# The functions around tiles are compiled without fast-math: numba would spread the flags over the tiles' own sums.
_INT8, _INT4 = np.int8(0), np.uint8(0)
AHEAD_BYTES = 4096  # how far before one row's product its panels are asked for: a page, where the hardware stops
TALLEST = amx_linear.TALLEST if AMX else HEIGHTS[0]
BLOCK_ROWS = 4 * TALLEST if AMX else 8 * TALLEST
"""Rows that are multiplied together: they and a panel stay in a core's second-level cache."""
UNIT = max(1, 32 // WIDTH)  # panels


def record(*names: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in names])


MATRIX = record("panels", "panel_bytes", "groups", "scale", "bias", "inputs", "outputs", "unit", "by_tiles")
"""Addresses and numbers of a packed matrix; groups: of int4, a row; unit: panels that a thread draws at a time; by_tiles:
whether `amx_linear` multiplies rows of bfloat16, for which panels of bfloat16 lie as it wants them."""


@njit(cache=True, error_model="numpy")
def count_units(matrix: Any, rows: Any) -> Any:
    """How many units `multiply_units` draws: runs of panels, times blocks of rows."""
    panels = (matrix.outputs + WIDTH - 1) // WIDTH
    return (panels + matrix.unit - 1) // matrix.unit * ((rows + BLOCK_ROWS - 1) // BLOCK_ROWS)


@njit(cache=True, error_model="numpy")
def _multiply_panels(
    matrix: Any, first: Any, last: Any, after: Any, a: Any, lda: Any, sums: Any, begin: Any, end: Any, one: Any,
    y: Any, y_stride: Any, edge: Any, row_tag: Any, weight_tag: Any, tag: Any,
) -> None:  # fmt: skip
    """Rows begin..end of y, as far as panels first..last go. after: the panel that this thread will want next; one: whether
    y has but one row."""
    if by_tiles(row_tag) and matrix.by_tiles:
        amx_linear.multiply_by_tiles(matrix, first, last, after, a, lda, sums, begin, end, y, y_stride, weight_tag, tag)
        return
    pairs, size, groups, y_bytes = (matrix.inputs + 1) // 2, matrix.panel_bytes, matrix.groups, ir.size(tag)
    passes, slow = (end - begin + HEIGHTS[0] - 1) // HEIGHTS[0], np.int64(0)
    while 2 << slow <= passes:
        slow += 1
    p = first
    while p < last:
        step = PANELS_OF_ONE_ROW if one and last - p >= PANELS_OF_ONE_ROW else 1
        panel, column = matrix.panels + p * size, p * WIDTH
        ahead = matrix.panels + (p + step if p + step < last else after) * size
        if one:  # streams through memory, in order, and finds the next panel's front there
            ir.prefetch(ahead, AHEAD_BYTES)
            ahead = panel + AHEAD_BYTES
        scale, bias = matrix.scale + column * 4, matrix.bias + column * 4
        ragged = column + step * WIDTH > matrix.outputs
        r = begin
        while r < end:
            row, s, target = a + r * lda * ir.size(row_tag), sums + r * groups * 4, y + (r * y_stride + column) * y_bytes
            c, ldc = (edge, step * WIDTH) if ragged else (target, y_stride)
            if one and step == PANELS_OF_ONE_ROW:
                n = one_row_tile(
                    end - r, row, lda, row_tag, pairs, s, panel, size, weight_tag, scale, bias, c, ldc, tag, ahead, slow
                )
            else:
                n = panel_tile(
                    end - r, row, lda, row_tag, pairs, s, panel, size, weight_tag, scale, bias, c, ldc, tag, ahead, slow
                )
            if ragged:
                for i in range(n):
                    ir.copy(target + i * y_stride * y_bytes, c + i * ldc * y_bytes, (matrix.outputs - column) * y_bytes)
            ahead += size >> slow
            r += n
        p += step


@njit(cache=True, error_model="numpy")
def multiply_units(
    matrix: Any, a: Any, lda: Any, sums: Any, rows: Any, y: Any, y_stride: Any, counter: Any,
    row_tag: Any, weight_tag: Any, tag: Any,
) -> None:  # fmt: skip
    """y = a @ matrix: draw units until none is left. a: (rows, inputs, made even) by row_tag; y by tag."""
    panels, unit = (matrix.outputs + WIDTH - 1) // WIDTH, matrix.unit
    units, runs = count_units(matrix, rows), (panels + unit - 1) // unit
    edge = np.empty(TALLEST * WIDTH * 2, dtype=np.float32)  # for a tile that is wider than what is left of y
    mine = ir.take_ticket(counter)
    while mine < units:
        following = ir.take_ticket(counter)  # drawn early, to know what to fetch meanwhile
        first, begin = mine % runs * unit, mine // runs * BLOCK_ROWS
        _multiply_panels(
            matrix, first, min(panels, first + unit), min(following % runs * unit, panels - 1), a, lda, sums,
            begin, min(rows, begin + BLOCK_ROWS), rows == 1, y, y_stride, edge.ctypes.data, row_tag, weight_tag, tag,
        )  # fmt: skip
        ir.finish_ticket(counter)
        mine = following
    ir.keep(edge)


@njit(cache=True, error_model="numpy")
def multiply_rows(
    matrix: Any, a: Any, sums: Any, begin: Any, end: Any, y: Any, row_tag: Any, weight_tag: Any, tag: Any
) -> None:  # fmt: skip
    """Rows begin..end of y = a @ matrix, at most BLOCK_ROWS, by this thread alone. a (…, inputs), an even number; y (…,
    outputs)."""
    panels = (matrix.outputs + WIDTH - 1) // WIDTH
    edge = np.empty(TALLEST * WIDTH * 2, dtype=np.float32)
    _multiply_panels(
        matrix, np.int64(0), panels, panels - 1, a, matrix.inputs, sums, begin, end, False, y, matrix.outputs,
        edge.ctypes.data, row_tag, weight_tag, tag,
    )  # fmt: skip
    ir.keep(edge)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _take_row(x: Any, inputs: Any, row: Any, depth: Any, sums: Any, groups: Any, tag: Any, row_tag: Any) -> None:
    for i in range(inputs):
        ir.store(row, i, ir.load(x, i, tag), row_tag)
    for i in range(inputs, depth):
        ir.store(row, i, np.float32(0.0), row_tag)
    group_sums(row, sums, groups, row_tag)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def group_sums(row: Any, sums: Any, groups: Any, row_tag: Any) -> None:
    """What int4's offsets are multiplied by: the sum of each group of inputs of one row."""
    for g in range(groups):
        total = np.float32(0.0)
        for i in range(g * INT4_GROUP, (g + 1) * INT4_GROUP):
            total += ir.load(row, i, row_tag)
        ir.store(sums, g, total, _F32)


@njit(cache=True, error_model="numpy", parallel=True)
def _linear(
    matrices: Any,
    x: Any,
    x_stride: Any,
    rows: Any,
    y: Any,
    y_stride: Any,
    row_tag: Any,
    weight_tag: Any,
    tag: Any,
    workers: Any,
) -> None:
    matrix = matrices[0]
    inputs, groups, depth = matrix.inputs, matrix.groups, (matrix.inputs + 1) // 2 * 2
    as_it_is = ir.size(tag) == ir.size(row_tag) and depth == inputs
    memory = np.empty(rows * groups + (0 if as_it_is else rows * depth) + 1, dtype=np.float32)
    sums = memory.ctypes.data
    a, lda = (x, x_stride) if as_it_is else (sums + rows * groups * 4, depth)
    for r in range(rows):
        if as_it_is:
            group_sums(x + r * x_stride * ir.size(tag), sums + r * groups * 4, groups, row_tag)
        else:
            row = a + r * depth * ir.size(row_tag)
            _take_row(x + r * x_stride * ir.size(tag), inputs, row, depth, sums + r * groups * 4, groups, tag, row_tag)
    counter = np.zeros(ir.COUNTER_BYTES // 8, dtype=np.int64)
    address = counter.ctypes.data
    for _ in prange(workers):
        multiply_units(matrices[0], a, lda, sums, rows, y, y_stride, address, row_tag, weight_tag, tag)
    ir.keep(memory)
    ir.keep(counter)


@njit(cache=True, error_model="numpy")
def _take_some(matrices: Any, indices: Any, rows: Any, weight_tag: Any, tag: Any, first: Any, last: Any) -> Any:
    """Rows first..last: those of the weight that `indices` (int32) names, to `rows` (…, inputs) by `tag`. How many of them
    the weight does not have."""
    matrix, unknown = matrices[0], np.int64(0)
    paired = ir.size(weight_tag) == 2
    for r in range(first, last):
        index = ir.load_i32(indices, r)
        if index < 0 or index >= matrix.outputs:
            unknown += 1
            continue
        panel, column = matrix.panels + index // WIDTH * matrix.panel_bytes, index % WIDTH
        target, scale = rows + r * matrix.inputs * ir.size(tag), ir.load(matrix.scale, index, _F32)
        if by_tiles(weight_tag) and matrix.by_tiles:
            panel += column // OUTPUTS * (matrix.inputs // INPUTS) * TILE
            for i in range(matrix.inputs):
                at = i // INPUTS * INPUTS * OUTPUTS + (i % INPUTS // 2 * OUTPUTS + column % OUTPUTS) * 2 + i % 2
                ir.store(target, i, ir.load(panel, at, BFLOAT16), tag)
            continue
        for i in range(matrix.inputs):
            at = (i // 2 * WIDTH + column) * 2 + i % 2 if paired else i * WIDTH + column
            ir.store(target, i, ir.load(panel, at, weight_tag) * scale, tag)
    return unknown


@njit(cache=True, error_model="numpy", parallel=True)
def _take_rows(matrices: Any, indices: Any, rows: Any, weight_tag: Any, tag: Any, count: Any, workers: Any) -> Any:
    unknown = np.int64(0)
    for w in prange(workers):
        first, last = count * w // workers, count * (w + 1) // workers
        unknown += _take_some(matrices, indices, rows, weight_tag, tag, first, last)
    return unknown


class PackedLinear:
    """As `reference.PackedLinear`; float32, bfloat16, int8 and int4 are packed, float16 is kept plain.

    A row's result is the same to the last bit whatever the other rows are.
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
        self._panels: Tensor | None = None
        self._plain: Tensor | None = None
        self.weight_tag: Any = _F32
        self._by_tiles = AMX and self.in_features % INPUTS == 0
        self._in_tiles = False  # then only rows of bfloat16 are multiplied
        scale = self._pack(weight.detach())
        if self._panels is not None:
            packed, self._panels = self._panels, own_pages(tuple(self._panels.shape), self._panels.dtype, share=True)
            self._panels.copy_(packed)
        self._scale = pack_outputs(scale, self.out_features, 1.0)
        self._bias = pack_outputs(self.bias, self.out_features, 0.0)
        self.record = np.zeros(1, MATRIX)
        panels = self._panels
        if panels is not None:
            count = panels.shape[0]
            self.record[0] = (
                panels.data_ptr(), panels.numel() // count * panels.element_size(),
                self.in_features // INT4_GROUP if quantization == "int4" else 0,
                self._scale.data_ptr(), self._bias.data_ptr(), self.in_features, self.out_features,
                UNIT if self.out_features <= 4096 else 4 * UNIT,  # small matrices: fine shares; large ones: fewer draws
                self._by_tiles,
            )  # fmt: skip

    @property
    def in_panels(self) -> bool:
        return self._panels is not None

    def row_tag(self, tag: Any) -> Any:
        """How the kernel wants rows that come by `tag`: as bfloat16 where the processor multiplies that, else as float32."""
        return BFLOAT16 if BFLOAT16_PRODUCTS and self.weight_tag is not _F32 and tag is BFLOAT16 else _F32

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x: (M, I), rows may be strided. Returns (M, O) in x's dtype, in `out` where that is given."""
        tag = tag_of(x)
        if self._panels is not None and tag is not None and (tag is BFLOAT16 or not self._in_tiles):
            return self._from_panels(x, out, tag)
        y = F.linear(x, self._unpacked().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        return y if out is None else out.copy_(y)

    def take_rows(self, indices: Tensor) -> Tensor:
        """See `reference.PackedLinear.take_rows`; straight from the panels, where a second copy would be the alternative."""
        if self._panels is None or self.quantization == "int4":
            return F.embedding(indices, self._unpacked().to(self.dtype))
        wanted, count = indices.to(torch.int32).contiguous(), len(indices)
        rows = torch.empty((count, self.in_features), dtype=self.dtype)
        given = (self.record, wanted.data_ptr(), rows.data_ptr(), self.weight_tag, tag_of(rows))
        workers = workers_for(rows.numel())
        unknown = _take_some(*given, 0, count) if workers == 1 else _take_rows(*given, count, workers)
        if unknown:
            raise IndexError(f"{unknown} of {count} rows do not exist: the weight has {self.out_features}.")
        return rows

    def nbytes(self) -> int:
        """Bytes that the packed weight takes, with its scales and bias."""
        held = (self._panels, self._plain, self._scale, self._bias)
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def _pack(self, weight: Tensor) -> Tensor | None:
        """Returns the scale of each output, if there is one."""
        if self.quantization == "int8":
            codes, scale = quantize_int8(weight)
            self._panels, self.weight_tag = pack_rows(codes), _INT8
            return scale
        if self.quantization == "int4":
            self._panels, self.weight_tag = pack_int4(*quantize_int4(weight)), _INT4
        elif self.dtype == torch.bfloat16:
            self._in_tiles = self._by_tiles
            self._panels = amx_linear.pack_tiles(weight) if self._in_tiles else pack_pairs(weight)
            self.weight_tag = BFLOAT16
        elif self.dtype == torch.float32:
            self._panels = pack_rows(weight)
        else:
            self._plain = weight.contiguous()
        return None

    def _from_panels(self, x: Tensor, out: Tensor | None, tag: Any) -> Tensor:
        rows = x.shape[0]
        fits = out is not None and out.dtype == x.dtype and rows_of(out)
        y = out if fits and out is not None else torch.empty((rows, self.out_features), dtype=x.dtype)
        if not rows_of(x):
            x = x.contiguous()
        _linear(
            self.record, x.data_ptr(), x.stride(0), rows, y.data_ptr(), y.stride(0),
            self.row_tag(tag), self.weight_tag, tag, threads(),
        )  # fmt: skip
        return y if out is None or out is y else out.copy_(y)

    def _unpacked(self) -> Tensor:
        """The plain weight (O, I) again."""
        if self._plain is not None:
            return self._plain
        assert self._panels is not None
        if self.quantization is not None:
            eye = torch.eye(self.in_features)
            return (self._from_panels(eye, None, _F32) - self._bias[: self.out_features]).T
        if self._in_tiles:
            return amx_linear.unpack_tiles(self._panels)[: self.out_features]
        outputs_first = self._panels.transpose(1, 2)  # (panels, 16, I') or (panels, 16, I' / 2, 2)
        flat = outputs_first.reshape(-1, outputs_first[0, 0].numel())
        return flat[: self.out_features, : self.in_features]
