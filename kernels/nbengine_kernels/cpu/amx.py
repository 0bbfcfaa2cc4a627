"""The processor's own tiles (Intel's AMX): registers of up to 16 rows of 64 bytes, and one instruction that multiplies two.

TDPBF16PS adds A (rows, 32) times B (32, 16), both bfloat16, to C (rows, 16) in float32. A lies as matrices do, B in pairs of
its rows: (16, 16, 2). An instruction adds 32 products up on its own before it adds them to C, so where tiles are used for
some rows they must be for all, or a result would depend on how many it was computed with. Intel 64 and IA-32 Architectures
Software Developer's Manual, volumes 1 (chapter 18) and 2.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir as llvm
from numba import types
from numba.core.cgutils import alloca_once, get_or_insert_function
from numba.extending import intrinsic

from nbengine_kernels.cpu.ir import I8, I16, I64, _loop
from nbengine_kernels.cpu.runtime import AMX

ROWS, INPUTS, OUTPUTS = 16, 32, 16
TILE_BYTES = 64  # of a row
TILE = ROWS * TILE_BYTES  # bytes of a whole one
WIDTH = 64  # outputs of a panel
COLUMNS = WIDTH // OUTPUTS  # of tiles, in a panel
_SUMS, _LEFT, _RIGHT = (0, 1, 2, 3), (4, 5), (6, 7)  # the eight tiles
POINTER = I8.as_pointer()


def call(b: Any, name: str, *args: Any) -> None:
    """An instruction, by LLVM's name; tiles are told by their numbers, as I8."""
    kind = llvm.FunctionType(llvm.VoidType(), [arg.type for arg in args])
    b.call(get_or_insert_function(b.module, kind, f"llvm.x86.{name}"), args)


@intrinsic
def by_tiles(typingctx: Any, tag: Any) -> Any:
    """Whether numbers of the tag's type, as they lie in memory, are multiplied by tiles."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return llvm.IntType(1)(int(AMX and tag == types.uint16))

    return types.boolean(tag), codegen


def write_shapes(b: Any, shapes: Sequence[tuple[Any, Any]]) -> None:
    """Code to give this thread's tiles their rows and bytes a row, each an i64 value."""
    memory = alloca_once(b, llvm.ArrayType(I8, 64))
    b.store(llvm.Constant(memory.type.pointee, None), memory)
    config = b.bitcast(memory, POINTER)
    b.store(I8(1), config)
    for tile, (rows, nbytes) in enumerate(shapes):
        b.store(b.trunc(nbytes, I16), b.bitcast(b.gep(config, [I64(16 + 2 * tile)]), I16.as_pointer()))
        b.store(b.trunc(rows, I8), b.gep(config, [I64(48 + tile)]))
    call(b, "ldtilecfg", config)


@intrinsic
def shape_tiles(typingctx: Any, rows: Any) -> Any:
    """Shape tiles for `write_product`: so many rows of A and C, at most ROWS."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if AMX:
            write_shapes(b, [(I64(ROWS) if tile in _RIGHT else args[0], I64(TILE_BYTES)) for tile in range(8)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def free_tiles(typingctx: Any) -> Any:
    """Give the tiles up, so that the system need not keep them when it changes threads."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if AMX:
            call(b, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


def pointer(b: Any, address: Any, *offsets: Any) -> Any:
    """A pointer so many bytes behind an address."""
    for offset in offsets:
        address = b.add(address, I64(offset) if isinstance(offset, int) else offset)
    return b.inttoptr(address, POINTER)


def write_product(
    b: Any, steps: Any, lefts: Sequence[Any], left_stride: Any, rights: Sequence[Any], right_stride: int,
    outs: Sequence[Any], out_stride: int, *, add: bool, beside: Callable[[Any], None] | None = None, ring: int = -1,
) -> None:  # fmt: skip
    """Code for C (+)= A[:, 0 : INPUTS * steps] @ B, with the rows of A at one or two addresses and those of C at `outs`; B
    in columns of OUTPUTS, at `rights`, and C in such columns side by side. Strides are in bytes, B's from pair to pair.
    beside: what else is done with each step, whose number it is given. ring: of a step's number, the bits by which B is
    found, where that holds but the last few steps."""
    sums = [(r, n) for r in range(len(lefts)) for n in range(len(rights))]
    places = [pointer(b, outs[r], n * TILE_BYTES) for r, n in sums]
    for tile, place in zip(_SUMS, places):
        if add:
            call(b, "tileloadd64", I8(tile), place, I64(out_stride))
        else:
            call(b, "tilezero", I8(tile))

    def step(i: Any, state: list[Any]) -> list[Any]:
        if beside is not None:
            beside(i)
        for tile, left in zip(_LEFT, lefts):
            call(b, "tileloadd64", I8(tile), pointer(b, left, b.mul(i, I64(2 * INPUTS))), left_stride)
        first = b.mul(b.and_(i, I64(ring)), I64(INPUTS // 2 * right_stride))
        for n, right in enumerate(rights):
            theirs = _RIGHT[n % len(_RIGHT)]
            call(b, "tileloadd64", I8(theirs), pointer(b, right, first), I64(right_stride))
            for r in range(len(lefts)):
                call(b, "tdpbf16ps", I8(_SUMS[sums.index((r, n))]), I8(_LEFT[r]), I8(theirs))
        return []

    _loop(b, steps, [], step)
    for tile, place in zip(_SUMS, places):
        call(b, "tilestored64", I8(tile), place, I64(out_stride))
