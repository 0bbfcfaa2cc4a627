"""Products with panels by the processor's tiles (see `amx`), of bfloat16 rows and weights, for every row count.

A panel of 64 outputs is four columns of B tiles, each from the first input to the last. Two tiles of rows by two of outputs
use what they load twice; up to 16 rows, a decode step's, take all four columns at once. Panels of codes are turned into
such tiles on the way (`amx_codes`): whole, or for few rows a step ahead of its product, so that the two take turns.
"""

from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.amx import INPUTS, OUTPUTS, ROWS, TILE, free_tiles, pointer, shape_tiles, write_product
from nbengine_kernels.cpu.amx_codes import is_codes, turn_panel, write_step
from nbengine_kernels.cpu.ir import CACHE_LINE, I64
from nbengine_kernels.cpu.runtime import AMX, FLOAT32

TALLEST = 2 * ROWS
WIDTH = 64  # outputs of a panel
_COLUMNS = WIDTH // OUTPUTS
_RING, _EARLY = 4, 2  # steps that are kept of codes, and how long before its product one is turned
_F32, _LANES = FLOAT32, ir.LANES


def pack_tiles(weight: Tensor) -> Tensor:
    """(O, I) bfloat16, I a multiple of INPUTS -> (ceil(O / 64), 4, I / 32, 16, 16, 2), padded with zeros."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -outputs % WIDTH))
    return padded.view(-1, _COLUMNS, OUTPUTS, inputs // INPUTS, INPUTS // 2, 2).permute(0, 1, 3, 4, 2, 5)


def unpack_tiles(panels: Tensor) -> Tensor:
    """The weight again, with its padding."""
    return panels.permute(0, 1, 4, 2, 3, 5).reshape(-1, panels.shape[2] * INPUTS)


def _ask(b: Any, ahead: Any, lines: Any, i: Any) -> None:
    """Code to ask for `lines` cache lines, those of step i."""

    def line(n: Any, state: list[Any]) -> list[Any]:
        ir.prefetch_line(b, pointer(b, ahead, b.mul(b.add(start, n), I64(CACHE_LINE))), level=2)
        return []

    start = b.mul(i, lines)
    ir._loop(b, lines, [], line)


def _write(b: Any, rows: Any, a: Any, lda: Any, steps: Any, rights: list[Any], c: Any, beside: Any, ring: int = -1) -> None:
    stride, out_stride = b.shl(lda, I64(1)), len(rights) * OUTPUTS * 4
    lefts, outs = [a], [c]
    if len(rights) == 2:  # the second tile's rows end with the last, and may repeat some of the first's
        second = b.sub(rows, I64(ROWS))
        lefts.append(b.add(a, b.mul(second, stride)))
        outs.append(b.add(c, b.mul(second, I64(out_stride))))
    write_product(b, steps, lefts, stride, rights, TILE // ROWS, outs, out_stride, add=False, beside=beside, ring=ring)


def _make_add_up(columns: int) -> Any:
    """C[0:rows] = A[0:rows, 0 : 32 * steps] @ `columns` columns of tiles, `apart` bytes apart; lda in elements. rows: as
    many as `shape_tiles` was told, and beyond that, with two columns, up to TALLEST. With each step `lines` cache lines are
    asked for, from `ahead` on."""

    @intrinsic
    def add_up(
        typingctx: Any, rows: Any, a: Any, lda: Any, steps: Any, panel: Any, apart: Any, c: Any, ahead: Any, lines: Any
    ) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            if AMX:
                rows, a, lda, steps, panel, apart, c, ahead, lines = args
                rights = [b.add(panel, b.mul(apart, I64(n))) for n in range(columns)]
                _write(b, rows, a, lda, steps, rights, c, lambda i: _ask(b, ahead, lines, i))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return add_up


_add_up_few, _add_up = _make_add_up(_COLUMNS), _make_add_up(2)


@intrinsic
def _turn_and_add_up(
    typingctx: Any, rows: Any, a: Any, lda: Any, steps: Any, panel: Any, room: Any, c: Any, ahead: Any, lines: Any, tag: Any
) -> Any:
    """As `_add_up_few`, of a panel of codes. room: for _RING steps' tiles."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if not (AMX and is_codes(tag)):
            return context.get_dummy_value()
        rows, a, lda, steps, panel, room, c, ahead, lines, _ = args

        def turn(i: Any) -> None:
            """Steps that there are not: the last, once more."""
            last = b.sub(steps, I64(1))
            i = b.select(b.icmp_signed("<", i, last), i, last)
            to = b.add(room, b.mul(b.and_(i, I64(_RING - 1)), I64(TILE)))
            write_step(b, tag, panel, i, to, I64(_RING * TILE))

        def beside(i: Any) -> None:
            _ask(b, ahead, lines, i)
            turn(b.add(i, I64(_EARLY)))

        ir._loop(b, I64(_EARLY), [], lambda i, state: (turn(i), [])[1])
        rights = [b.add(room, I64(n * _RING * TILE)) for n in range(_COLUMNS)]
        _write(b, rows, a, lda, steps, rights, c, beside, ring=_RING - 1)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9, tag), codegen


@njit(cache=True, error_model="numpy")
def _put(c: Any, c_width: Any, rows: Any, width: Any, scale: Any, bias: Any, y: Any, y_stride: Any, tag: Any) -> None:
    """y = C * scale + bias, `width` columns of it."""
    for column in range(0, width, 2 * _LANES):  # a cache line of bfloat16
        by, plus = v.load(scale, column, _F32), v.load(bias, column, _F32)
        by_2, plus_2 = v.load(scale, column + _LANES, _F32), v.load(bias, column + _LANES, _F32)
        left = width - column
        for r in range(rows):
            first = v.load(c, r * c_width + column, _F32) * by + plus
            second = v.load(c, r * c_width + column + _LANES, _F32) * by_2 + plus_2
            if left >= 2 * _LANES:
                v.store(y, r * y_stride + column, first, tag)
                v.store(y, r * y_stride + column + _LANES, second, tag)
            else:
                v.store_some(y, r * y_stride + column, first, left, tag)
                v.store_some(y, r * y_stride + column + _LANES, second, left - _LANES, tag)


@njit(cache=True, error_model="numpy")
def multiply_by_tiles(
    matrix: Any, first: Any, last: Any, after: Any, a: Any, lda: Any, start: Any, end: Any, y: Any, y_stride: Any,
    weight_tag: Any, tag: Any,
) -> None:  # fmt: skip
    """As `linear._multiply_panels`: rows start..end of y, as far as panels first..last go."""
    size, rows, steps = matrix.panel_bytes, end - start, matrix.inputs // INPUTS
    apart, half = steps * TILE, np.int64(WIDTH // 2)
    turned_bytes = np.int64(0) if ir.size(weight_tag) == 2 else _COLUMNS * TILE * max(steps, np.int64(_RING))
    room = np.empty(max(rows, np.int64(ROWS)) * WIDTH + 32 + turned_bytes // 4, dtype=np.float32)
    turned = (room.ctypes.data + 63) // 64 * 64
    c = turned + turned_bytes
    passes = (rows + TALLEST - 1) // TALLEST
    lines = ((size + CACHE_LINE - 1) // CACHE_LINE + 2 * steps * passes - 1) // (2 * steps * passes)  # with each step
    a, y = a + start * lda * 2, y + start * y_stride * ir.size(tag)
    shape_tiles(min(rows, np.int64(ROWS)))
    for p in range(first, last):
        panel, column = matrix.panels + p * size, p * WIDTH
        ahead = matrix.panels + (p + 1 if p + 1 < last else after) * size
        if rows <= ROWS:
            if turned_bytes > 0:
                _turn_and_add_up(rows, a, lda, steps, panel, turned, c, ahead, 2 * lines, weight_tag)
            else:
                _add_up_few(rows, a, lda, steps, panel, apart, c, ahead, 2 * lines)
            at, width = y + column * ir.size(tag), min(2 * half, matrix.outputs - column)
            _put(c, 2 * half, rows, width, matrix.scale + column * 4, matrix.bias + column * 4, at, y_stride, tag)
            continue
        if turned_bytes > 0:
            turn_panel(panel, steps, turned, weight_tag)
            panel = turned
        for begin in range(column, min(matrix.outputs, column + WIDTH), half):
            for i in range(passes):
                r = rows * i // passes
                n = rows * (i + 1) // passes - r
                _add_up(n, a + r * lda * 2, lda, steps, panel, apart, c + r * half * 4, ahead, lines)
                ahead += steps * lines * CACHE_LINE
            at, width = y + begin * ir.size(tag), min(half, matrix.outputs - begin)
            _put(c, half, rows, width, matrix.scale + begin * 4, matrix.bias + begin * 4, at, y_stride, tag)
            panel += 2 * apart
    free_tiles()
    ir.keep(room)
