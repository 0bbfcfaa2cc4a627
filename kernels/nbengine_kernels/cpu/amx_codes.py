"""Panels of int8 and int4 codes (see `panels`) turned into tiles of bfloat16 (see `amx`), when they are multiplied.

A code is a bfloat16 number, so only the scales remain. int8's come in when a sum is complete. int4's change every INPUTS
inputs, and so does what a code of 0 stands for: there a step's tiles are stored, scaled and added up beside the next step's
products, and with them offset times sum of inputs.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir as llvm
from numba import types
from numba.extending import intrinsic

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.amx import COLUMNS, INPUTS, TILE, WIDTH, pointer, write_product
from nbengine_kernels.cpu.ir import F32, I64, LANES
from nbengine_kernels.cpu.panels import GROUP_HEAD, load_bfloats
from nbengine_kernels.cpu.runtime import AMX

PART_ROWS = 32
_PAIR = TILE // (INPUTS // 2)  # bytes
_QUARTER = 4 * WIDTH  # bytes: words of 8 inputs each, so four to a step
_STEP_BYTES = {types.int8: INPUTS * WIDTH, types.uint8: GROUP_HEAD + 4 * _QUARTER}


def is_codes(tag: Any) -> bool:
    return tag in _STEP_BYTES


def write_step(b: Any, tag: Any, panel: Any, i: Any, to: Any, apart: Any) -> None:
    """Code to put the tiles of a panel's step i, INPUTS inputs, to `to`, one for each column, `apart` bytes apart."""
    start = pointer(b, panel, b.mul(i, I64(_STEP_BYTES[tag])))

    def put(pair: Any, column: int, codes: Any, k: int) -> None:
        words = b.bitcast(load_bfloats(b, codes, tag, k), llvm.VectorType(ir.I32, LANES))
        place = pointer(b, to, b.mul(apart, I64(column)), b.mul(pair, I64(_PAIR)))
        b.store(words, b.bitcast(place, words.type.as_pointer()), align=4)

    def pair(k: Any, state: list[Any]) -> list[Any]:
        for n in range(COLUMNS):
            put(k, n, b.gep(start, [b.add(b.mul(k, I64(2 * WIDTH)), I64(n * LANES))]), 0)
        return []

    def quarter(j: Any, state: list[Any]) -> list[Any]:
        for n in range(COLUMNS):
            codes = b.gep(start, [b.add(b.mul(j, I64(_QUARTER)), I64(GROUP_HEAD + n * LANES * 4))])
            for k in range(4):
                put(b.add(b.mul(j, I64(4)), I64(k)), n, codes, k)
        return []

    if tag == types.int8:
        ir._loop(b, I64(INPUTS // 2), [], pair)
    else:
        ir._loop(b, I64(4), [], quarter)


@intrinsic
def turn_panel(typingctx: Any, panel: Any, steps: Any, to: Any, tag: Any) -> Any:
    """A whole panel, to tiles as `amx_linear.pack_tiles` lays them; nothing where the tag is of no codes."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        panel, steps, to, _ = args

        def step(i: Any, state: list[Any]) -> list[Any]:
            write_step(b, tag, panel, i, b.add(to, b.mul(i, I64(TILE))), b.mul(steps, I64(TILE)))
            return []

        if AMX and is_codes(tag):
            ir._loop(b, steps, [], step)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, tag), codegen


def write_groups(
    b: Any, rows: Any, steps: Any, lefts: Sequence[Any], left_stride: Any, rights: Sequence[Any], ring: int,
    heads: Any, sums: Any, part: Any, parts: Sequence[Any], c: Any, beside: Callable[[Any], None],
) -> None:  # fmt: skip
    """As `amx.write_product`, of int4. heads: of the first group, for these columns; sums: of each row's groups; part: room
    for C twice, with a tile of it at each of `parts` bytes."""
    kind, columns = llvm.VectorType(F32, LANES), len(rights)
    row_bytes = columns * LANES * 4
    room = I64(PART_ROWS * row_bytes)

    def head(i: Any, offsets: bool) -> list[Any]:
        start = pointer(b, heads, b.mul(i, I64(_STEP_BYTES[types.uint8])))
        first = GROUP_HEAD // 2 if offsets else 0
        return [ir._load_vector(b, b.gep(start, [I64(first + n * LANES * 2)]), types.uint16, LANES) for n in range(columns)]

    def add_up(before: Any, odd: Any, i: Any) -> None:
        """C += what step `before` left in the first room or the second, scaled; and step i's offsets, if there is one."""
        scales, offsets = head(before, False), [] if i is None else head(i, True)
        theirs = b.add(part, b.mul(odd, room))

        def row(r: Any, state: list[Any]) -> list[Any]:
            at = b.mul(r, I64(row_bytes))
            if i is not None:
                place = b.add(b.mul(r, steps), i)
                inputs = ir._splat(b, b.load(ir._at(b, sums, place, F32), align=4), LANES)
            for n in range(columns):
                mine, new = (pointer(b, base, at, n * LANES * 4) for base in (c, theirs))
                total, more = (b.load(b.bitcast(place, kind.as_pointer()), align=4) for place in (mine, new))
                total = ir._fma(b, scales[n], more, total)
                if i is not None:
                    total = ir._fma(b, offsets[n], inputs, total)
                b.store(total, b.bitcast(mine, kind.as_pointer()), align=4)
            return []

        ir._loop(b, rows, [], row)

    def clear(r: Any, state: list[Any]) -> list[Any]:
        """C, and what the step before the first left: nothing."""
        for base in (c, b.add(part, room)):
            for n in range(columns):
                place = pointer(b, base, b.mul(r, I64(row_bytes)), n * LANES * 4)
                b.store(kind([0.0] * LANES), b.bitcast(place, kind.as_pointer()), align=4)
        return []

    def step(i: Any, state: list[Any]) -> list[Any]:
        beside(i)
        odd, previous = b.and_(i, I64(1)), b.sub(i, I64(1))
        there = b.add(part, b.mul(odd, room))
        mine = [b.add(left, b.mul(i, I64(2 * INPUTS))) for left in lefts]
        first = b.mul(b.and_(i, I64(ring)), I64(TILE))
        theirs = [b.add(right, first) for right in rights]
        outs = [b.add(there, at) for at in parts]
        write_product(b, I64(1), mine, left_stride, theirs, _PAIR, outs, row_bytes, add=False)
        add_up(b.select(b.icmp_signed("<", previous, I64(0)), I64(0), previous), b.xor(odd, I64(1)), i)
        return []

    ir._loop(b, rows, [], clear)
    ir._loop(b, steps, [], step)
    last = b.sub(steps, I64(1))
    add_up(last, b.and_(last, I64(1)), None)
