"""Products with panels by the processor's tiles (see `amx`), of bfloat16 rows and weights, for every row count.

A panel of weights (see `panels`) is a row of B tiles as it lies. Two tiles of rows by two of outputs use what they load
twice, which keeps the multipliers busy; up to 16 rows, a decode step's, take all four of a panel at once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.amx import INPUTS, OUTPUTS, ROWS, free_tiles, pointer, shape_tiles, write_product
from nbengine_kernels.cpu.ir import CACHE_LINE, I64
from nbengine_kernels.cpu.runtime import AMX, FLOAT32

TALLEST = 2 * ROWS
_WIDTH = 64  # outputs of a panel
_COLUMNS = _WIDTH // OUTPUTS
_PAIR_BYTES = _WIDTH * 4  # of a panel, for two inputs
_STEP_LINES = INPUTS // 2 * _PAIR_BYTES // CACHE_LINE
_F32 = FLOAT32


@intrinsic
def _add_up(
    typingctx: Any, rows: Any, a: Any, lda: Any, inputs: Any, panel: Any, c: Any, ahead: Any, lines: Any
) -> Any:  # fmt: skip
    """C[0:rows, 0:_WIDTH] = A[0:rows] @ panel, float32, for as many rows as `shape_tiles` was told, or up to TALLEST; lda in
    elements. With each step `lines` cache lines are asked for, from `ahead` on."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if AMX:
            _write(b, *args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), codegen


def _write(b: Any, rows: Any, a: Any, lda: Any, inputs: Any, panel: Any, c: Any, ahead: Any, lines: Any) -> None:
    apart, steps = b.shl(lda, I64(1)), b.udiv(inputs, I64(INPUTS))

    def ask(first: Any, lines: Any) -> Callable[[Any], None]:
        """With each step, `lines` lines: those from `first` on, then the following ones."""

        def some(i: Any) -> None:
            start = b.add(first, b.mul(i, lines))

            def line(n: Any, state: list[Any]) -> list[Any]:
                ir.prefetch_line(b, pointer(b, ahead, b.mul(b.add(start, n), I64(CACHE_LINE))), level=2)
                return []

            ir._loop(b, lines, [], line)

        return some

    with b.if_else(b.icmp_signed(">", rows, I64(ROWS))) as (many, few):
        with many:  # the second tile's rows end with the last, and may repeat some of the first's
            second, half = b.sub(rows, I64(ROWS)), b.lshr(b.add(lines, I64(1)), I64(1))
            lefts = a, b.add(a, b.mul(second, apart))
            outs = c, b.add(c, b.mul(second, I64(_WIDTH * 4)))
            for n in (0, 1):
                right, places = b.add(panel, I64(n * 128)), [b.add(out, I64(n * 128)) for out in outs]
                beside = ask(b.mul(b.mul(steps, half), I64(n)), half)
                write_product(b, steps, lefts, apart, right, _PAIR_BYTES, 2, places, _WIDTH * 4, beside=beside)
        with few:
            beside = ask(I64(0), lines)
            write_product(b, steps, [a], apart, panel, _PAIR_BYTES, _COLUMNS, [c], _WIDTH * 4, beside=beside)


@njit(cache=True, error_model="numpy")
def _put(c: Any, rows: Any, width: Any, scale: Any, bias: Any, y: Any, y_stride: Any, tag: Any) -> None:
    """y = C * scale + bias."""
    for column in range(0, width, ir.LANES):
        by, plus = v.load(scale, column, _F32), v.load(bias, column, _F32)
        for r in range(rows):
            value = v.load(c, r * _WIDTH + column, _F32) * by + plus
            if column + ir.LANES <= width:
                v.store(y, r * y_stride + column, value, tag)
            else:
                v.store_some(y, r * y_stride + column, value, width - column, tag)


@njit(cache=True, error_model="numpy")
def multiply_by_tiles(
    matrix: Any, first: Any, last: Any, after: Any, a: Any, lda: Any, begin: Any, end: Any,
    y: Any, y_stride: Any, tag: Any,
) -> None:  # fmt: skip
    """As `linear._multiply_panels`: rows begin..end of y, as far as panels first..last go."""
    size, rows = matrix.panel_bytes, end - begin
    room = np.empty(TALLEST * _WIDTH + 16, dtype=np.float32)
    c = (room.ctypes.data + 63) // 64 * 64
    passes = (rows + TALLEST - 1) // TALLEST
    lines = (_STEP_LINES + passes - 1) // passes
    shape_tiles(min(rows, np.int64(ROWS)))
    for p in range(first, last):
        panel, column = matrix.panels + p * size, p * _WIDTH
        ahead = matrix.panels + (p + 1 if p + 1 < last else after) * size
        width = min(np.int64(_WIDTH), matrix.outputs - column)
        for i in range(passes):
            r = begin + rows * i // passes
            n = begin + rows * (i + 1) // passes - r
            _add_up(n, a + r * lda * 2, lda, matrix.inputs, panel, c, ahead + size * i // passes, lines)
            target = y + (r * y_stride + column) * ir.size(tag)
            _put(c, n, width, matrix.scale + column * 4, matrix.bias + column * 4, target, y_stride, tag)
    free_tiles()
    ir.keep(room)
