"""Panels of int8 and int4 codes (see `panels`) turned into tiles of bfloat16 (see `amx`), when they are multiplied.

A code of int8 is a bfloat16 number; the scale comes in when a sum is complete. int4 has other scales every INPUTS inputs,
within a tile's sum, so there each weight is rounded to bfloat16 itself.
"""

from typing import Any

from llvmlite import ir as llvm
from numba import types
from numba.extending import intrinsic

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.amx import INPUTS, TILE, pointer
from nbengine_kernels.cpu.ir import I64, LANES
from nbengine_kernels.cpu.panels import GROUP_HEAD, WIDTH, load_bfloats
from nbengine_kernels.cpu.runtime import AMX
from nbengine_kernels.cpu.vectors import pairs_of

_VECTORS = WIDTH // LANES  # of a panel
_PAIR = TILE // (INPUTS // 2)  # bytes
_QUARTER = 4 * WIDTH  # bytes: words of 8 inputs each, so four to a step
_STEP_BYTES = {types.int8: INPUTS * WIDTH, types.uint8: GROUP_HEAD + 4 * _QUARTER}


def is_codes(tag: Any) -> bool:
    return tag in _STEP_BYTES


def write_step(b: Any, tag: Any, panel: Any, i: Any, to: Any, apart: Any) -> None:
    """Code to put the tiles of a panel's step i, INPUTS inputs, to `to`, one for each column, `apart` bytes apart."""
    start = pointer(b, panel, b.mul(i, I64(_STEP_BYTES[tag])))

    def put(pair: Any, column: int, words: Any) -> None:
        place = pointer(b, to, b.mul(apart, I64(column)), b.mul(pair, I64(_PAIR)))
        b.store(words, b.bitcast(place, words.type.as_pointer()), align=4)

    def pair(k: Any, state: list[Any]) -> list[Any]:
        for n in range(_VECTORS):
            codes = b.gep(start, [b.add(b.mul(k, I64(2 * WIDTH)), I64(n * LANES))])
            words = b.bitcast(load_bfloats(b, codes, tag, 0), llvm.VectorType(ir.I32, LANES))
            put(k, n, words)
        return []

    def column(n: int) -> None:
        """Of int4. A code is taken where it stands in its word, as a multiple of 16**place, with a scale so much less."""
        scale, offset = (
            ir._load_vector(b, b.gep(start, [I64(part + n * LANES * 2)]), types.uint16, LANES)
            for part in (0, GROUP_HEAD // 2)
        )
        scales = [b.fmul(scale, scale.type([16.0**-place] * LANES)) for place in range(8)]

        def weights(words: Any, place: int) -> Any:
            codes = b.and_(words, words.type([15 << 4 * place] * LANES))
            return ir._fma(b, b.uitofp(codes, scale.type), scales[place], offset)

        def quarter(j: Any, state: list[Any]) -> list[Any]:
            kind = llvm.VectorType(ir.I32, LANES)
            place = b.gep(start, [b.add(b.mul(j, I64(_QUARTER)), I64(GROUP_HEAD + n * LANES * 4))])
            words = b.load(b.bitcast(place, kind.as_pointer()), align=4)
            for k in range(4):
                put(b.add(b.mul(j, I64(4)), I64(k)), n, pairs_of(b, weights(words, k), weights(words, k + 4)))
            return []

        ir._loop(b, I64(4), [], quarter)

    if tag == types.int8:
        ir._loop(b, I64(INPUTS // 2), [], pair)
    else:
        for n in range(_VECTORS):
            column(n)


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
