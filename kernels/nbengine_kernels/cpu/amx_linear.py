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
from nbengine_kernels.cpu.amx import (
    COLUMNS,
    INPUTS,
    OUTPUTS,
    ROWS,
    TILE,
    WIDTH,
    free_tiles,
    pointer,
    shape_tiles,
    write_product,
)
from nbengine_kernels.cpu.amx_codes import PART_ROWS, is_codes, turn_panel, write_groups, write_step
from nbengine_kernels.cpu.ir import CACHE_LINE, I64
from nbengine_kernels.cpu.runtime import AMX, FLOAT32

TALLEST = 2 * ROWS
_RING, _EARLY = 4, 2  # steps that are kept of codes, and how long before its product one is turned
_F32, _LANES = FLOAT32, ir.LANES


def pack_tiles(weight: Tensor) -> Tensor:
    """(O, I) bfloat16, I a multiple of INPUTS -> (ceil(O / 64), 4, I / 32, 16, 16, 2), padded with zeros."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -outputs % WIDTH))
    return padded.view(-1, COLUMNS, OUTPUTS, inputs // INPUTS, INPUTS // 2, 2).permute(0, 1, 3, 4, 2, 5)


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


def _sides(b: Any, rows: Any, a: Any, stride: Any, columns: int) -> tuple[list[Any], list[Any]]:
    """Where the tiles of rows begin, one or, with two columns, two: addresses in A and bytes in C. The second tile's rows
    end with the last, and may repeat some of the first's."""
    if columns != 2:
        return [a], [I64(0)]
    second = b.sub(rows, I64(ROWS))
    return [a, b.add(a, b.mul(second, stride))], [I64(0), b.mul(second, I64(columns * OUTPUTS * 4))]


def _make_add_up(columns: int) -> Any:
    """C[0:rows] = A[0:rows, 0 : 32 * steps] @ `columns` columns of `tiles`, `apart` bytes apart; lda in elements. rows: as
    many as `shape_tiles` was told, and beyond that, with two columns, up to TALLEST. With each step `lines` cache lines are
    asked for, from `ahead` on.

    Where the tag is of codes, `codes` is their panel, from these columns on, and with all columns `tiles` is where _RING
    steps of them are turned to. int4 needs `sums` of each row's groups, and room, `part`.
    """

    @intrinsic
    def add_up(
        typingctx: Any, rows: Any, a: Any, lda: Any, steps: Any, tiles: Any, apart: Any, c: Any, ahead: Any, lines: Any,
        codes: Any, sums: Any, part: Any, tag: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            if AMX:
                write(b, *args[:-1])
            return context.get_dummy_value()

        def write(
            b: Any, rows: Any, a: Any, lda: Any, steps: Any, tiles: Any, apart: Any, c: Any, ahead: Any, lines: Any,
            codes: Any, sums: Any, part: Any,
        ) -> None:  # fmt: skip
            turning = columns == COLUMNS and is_codes(tag)

            def turn(i: Any) -> None:
                """Steps that there are not: the last, once more."""
                last = b.sub(steps, I64(1))
                i = b.select(b.icmp_signed("<", i, last), i, last)
                write_step(b, tag, codes, i, b.add(tiles, b.mul(b.and_(i, I64(_RING - 1)), I64(TILE))), apart)

            def beside(i: Any) -> None:
                _ask(b, ahead, lines, i)
                if turning:
                    turn(b.add(i, I64(_EARLY)))

            for early in range(_EARLY if turning else 0):
                turn(I64(early))
            stride, ring = b.shl(lda, I64(1)), _RING - 1 if turning else -1
            lefts, places = _sides(b, rows, a, stride, columns)
            rights = [b.add(tiles, b.mul(apart, I64(n))) for n in range(columns)]
            if tag == types.uint8:
                write_groups(b, rows, steps, lefts, stride, rights, ring, codes, sums, part, places, c, beside)
                return
            outs, width = [b.add(c, place) for place in places], columns * OUTPUTS * 4
            write_product(
                b, steps, lefts, stride, rights, TILE // ROWS, outs, width, add=False, beside=beside, ring=ring
            )  # fmt: skip

        return types.void(*[types.int64] * 12, tag), codegen

    return add_up


_add_up_few, _add_up = _make_add_up(COLUMNS), _make_add_up(2)


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
    matrix: Any, first: Any, last: Any, after: Any, a: Any, lda: Any, sums: Any, start: Any, end: Any, y: Any, y_stride: Any,
    weight_tag: Any, tag: Any,
) -> None:  # fmt: skip
    """As `linear._multiply_panels`: rows start..end of y, as far as panels first..last go."""
    size, rows, steps, coded = matrix.panel_bytes, end - start, matrix.inputs // INPUTS, ir.size(weight_tag) == 1
    few = rows <= ROWS
    half, kept = np.int64(WIDTH // 2), np.int64(_RING) if coded and few else steps  # kept: steps of tiles
    turned_bytes, part_bytes = COLUMNS * TILE * kept if coded else np.int64(0), np.int64(2 * PART_ROWS * WIDTH * 4)
    room = np.empty(max(rows, np.int64(ROWS)) * WIDTH + 32 + (turned_bytes + part_bytes) // 4, dtype=np.float32)
    turned = (room.ctypes.data + 63) // 64 * 64
    part = turned + turned_bytes
    c = part + part_bytes
    passes = (rows + TALLEST - 1) // TALLEST
    lines = ((size + CACHE_LINE - 1) // CACHE_LINE + 2 * steps * passes - 1) // (2 * steps * passes)  # with each step
    a, y, sums = a + start * lda * 2, y + start * y_stride * ir.size(tag), sums + start * matrix.groups * 4
    shape_tiles(min(rows, np.int64(ROWS)))
    for p in range(first, last):
        codes, column = matrix.panels + p * size, p * WIDTH
        ahead = matrix.panels + (p + 1 if p + 1 < last else after) * size
        tiles = turned if coded else codes
        if few:
            _add_up_few(rows, a, lda, steps, tiles, kept * TILE, c, ahead, 2 * lines, codes, sums, part, weight_tag)
            at, width = y + column * ir.size(tag), min(2 * half, matrix.outputs - column)
            _put(c, 2 * half, rows, width, matrix.scale + column * 4, matrix.bias + column * 4, at, y_stride, tag)
            continue
        turn_panel(codes, steps, turned, weight_tag)
        for begin in range(column, min(matrix.outputs, column + WIDTH), half):
            for i in range(passes):
                r = rows * i // passes
                n = rows * (i + 1) // passes - r
                _add_up(
                    n, a + r * lda * 2, lda, steps, tiles, kept * TILE, c + r * half * 4, ahead, lines,
                    codes + (begin - column) * 2, sums + r * matrix.groups * 4, part, weight_tag,
                )  # fmt: skip
                ahead += steps * lines * CACHE_LINE
            at, width = y + begin * ir.size(tag), min(half, matrix.outputs - begin)
            _put(c, half, rows, width, matrix.scale + begin * 4, matrix.bias + begin * 4, at, y_stride, tag)
            tiles += 2 * kept * TILE
    free_tiles()
    ir.keep(room)
