"""The few operations that numba lacks: typed memory access by address, bfloat16, an atomic counter (tiles are in `tiles`).

Addresses are int64. A `tag` is a scalar whose numba type says how memory is read: float32 as it is; uint16 holds the
bits of a bfloat16. So one kernel source serves both dtypes, and numba compiles it once for each, whatever the shapes.
"""

import os
import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from nbengine_kernels.cpu.runtime import BFLOAT16_PRODUCTS, STREAMS_BY

I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
FAST = ("contract", "nsz", "reassoc")
LANES = 16
"""Columns of a tile. LLVM splits a vector of 16 floats into the registers that the machine has."""
CACHE_LINE = 64  # bytes
DONE = 64  # bytes from a counter of drawn units to that of units done, in a cache line of its own
COUNTER_BYTES = 128
SPINS = 1024  # looks at a counter between two offers of the core; a power of two
_PAUSE = "llvm.x86.sse2.pause" if platform.machine() in ("x86_64", "AMD64") else None


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def _is_bf16(tag: Any) -> bool:
    return bool(tag == types.uint16)


def multiplies(tag: Any) -> bool:
    """Whether the processor multiplies numbers of the tag's type as they are, in pairs."""
    return _is_bf16(tag) and BFLOAT16_PRODUCTS


def _element(tag: Any) -> Any:
    return I16 if _is_bf16(tag) else F32


def _at(b: Any, base: Any, index: Any, element: Any) -> Any:
    return b.gep(b.inttoptr(base, element.as_pointer()), [index])


def _widen(b: Any, raw: Any, lanes: int) -> Any:
    """Vector (or, for lanes = 0, scalar) of bfloat16 bits -> float32."""
    if lanes == 0:
        return b.bitcast(b.shl(b.zext(raw, I32), I32(16)), F32)
    wide = ir.VectorType(I32, lanes)
    return b.bitcast(b.shl(b.zext(raw, wide), wide([16] * lanes)), ir.VectorType(F32, lanes))


def _load_vector(b: Any, address: Any, tag: Any, lanes: int) -> Any:
    """`address` points at the first element; no alignment is assumed."""
    if _is_bf16(tag):
        vector = ir.VectorType(I16, lanes)
        return _widen(b, b.load(b.bitcast(address, vector.as_pointer()), align=2), lanes)
    vector = ir.VectorType(F32, lanes)
    return b.load(b.bitcast(address, vector.as_pointer()), align=4)


def _store_vector(b: Any, value: Any, address: Any) -> None:
    b.store(value, b.bitcast(address, value.type.as_pointer()), align=4)


def store_vector_at(b: Any, value: Any, base: Any, index: Any, tag: Any) -> None:
    """Put a vector of float32 from element `index` on, rounded to the nearest even bfloat16 where the tag says so."""
    if _is_bf16(tag):
        lanes = value.type.count
        bits = b.trunc(_bf16_bits(b, value, lanes), ir.VectorType(I16, lanes))
        b.store(bits, b.bitcast(_at(b, base, index, I16), bits.type.as_pointer()), align=2)
    else:
        _store_vector(b, value, _at(b, base, index, F32))


def _splat(b: Any, scalar: Any, lanes: int) -> Any:
    vector = ir.VectorType(scalar.type, lanes)
    one = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.VectorType(I32, lanes)([0] * lanes))


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z of vectors, rounded once: always fused, or tiles of different heights would differ in the last bit."""
    kind = x.type
    name = f"llvm.fma.v{kind.count}f32"
    return b.call(get_or_insert_function(b.module, ir.FunctionType(kind, [kind] * 3), name), [x, y, z])


def _add_pairs(b: Any, x: Any, y: Any, z: Any) -> Any:
    """z + x * y of both numbers of each pair; x and y are bfloat16, z a vector of half as many float32."""
    function = ir.FunctionType(z.type, [z.type, x.type, y.type])
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * z.type.count}"
    return b.call(get_or_insert_function(b.module, function, name), [z, x, y])


def _loop(b: Any, count: Any, start: list[Any], body: Any) -> list[Any]:
    """`for i in range(count): state = body(i, state)`, the state in registers. Returns the last state."""
    before = b.block
    head, inside, after = (b.append_basic_block(name) for name in ("head", "inside", "after"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    state = [b.phi(value.type) for value in start]
    b.cbranch(b.icmp_signed("<", index, count), inside, after)
    b.position_at_end(inside)
    new = body(index, state)
    following = b.add(index, I64(1))
    for phi, first, last in zip([index, *state], [I64(0), *start], [following, *new]):
        phi.add_incoming(first, before)
        phi.add_incoming(last, b.block)
    b.branch(head)
    b.position_at_end(after)
    return state


def prefetch_line(b: Any, address: Any, *, once: bool = False, level: int = 1) -> None:
    """Ask for the cache line at an i8 pointer, to be read, and kept in every cache from `level` on; or, if it is read but
    once, in none from which it would drive out others."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    locality = 0 if once and STREAMS_BY else 4 - level
    b.call(get_or_insert_function(b.module, kind, "llvm.prefetch.p0"), [address, I32(0), I32(locality), I32(1)])


# ---------------------------------------------------------------------------------------------------- scalars


@intrinsic
def load(typingctx: Any, base: Any, index: Any, tag: Any) -> Any:
    """Element `index` of the array at `base`, as float32; whole numbers of 8 bits, too."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if tag == types.int8:
            return b.sitofp(b.load(_at(b, args[0], args[1], I8)), F32)
        if _is_bf16(tag):
            return _widen(b, b.load(_at(b, args[0], args[1], I16)), 0)
        return b.load(_at(b, args[0], args[1], F32))

    return types.float32(types.int64, types.int64, tag), codegen


@intrinsic
def store(typingctx: Any, base: Any, index: Any, value: Any, tag: Any) -> Any:
    """Put a float32 into element `index`, rounded to the nearest even bfloat16 where the tag says so."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if _is_bf16(tag):
            b.store(b.trunc(_bf16_bits(b, args[2]), I16), _at(b, args[0], args[1], I16))
        else:
            b.store(args[2], _at(b, args[0], args[1], F32))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, tag), codegen


def _bf16_bits(b: Any, value: Any, lanes: int = 0) -> Any:
    """float32, or a vector of them -> i32 that holds its bfloat16 bits, to the nearest, ties to even; NaN stays NaN."""

    def whole(number: int) -> Any:
        return ir.VectorType(I32, lanes)([number] * lanes) if lanes else I32(number)

    if BFLOAT16_PRODUCTS:  # then the processor rounds, too
        narrow, short = (ir.VectorType(kind, lanes) if lanes else kind for kind in (_BFloat(), I16))
        return b.zext(b.bitcast(b.fptrunc(value, narrow), short), whole(0).type)
    bits = b.bitcast(value, whole(0).type)
    odd = b.and_(b.lshr(bits, whole(16)), whole(1))
    rounded = b.lshr(b.add(bits, b.add(odd, whole(0x7FFF))), whole(16))
    is_nan = b.icmp_unsigned(">", b.and_(bits, whole(0x7FFFFFFF)), whole(0x7F800000))
    return b.select(is_nan, whole(0x7FC0), rounded)


@intrinsic
def rounded(typingctx: Any, value: Any, tag: Any) -> Any:
    """A float32 as it would come back from memory of the tag's type."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.bitcast(b.shl(_bf16_bits(b, args[0]), I32(16)), F32) if _is_bf16(tag) else args[0]

    return types.float32(types.float32, tag), codegen


@intrinsic
def load_i32(typingctx: Any, base: Any, index: Any) -> Any:
    """Element `index` of an int32 array, as int64."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.sext(b.load(_at(b, args[0], args[1], I32)), I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_i64(typingctx: Any, base: Any, index: Any) -> Any:
    """Element `index` of an int64 array."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load(_at(b, args[0], args[1], I64))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def copy(typingctx: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """memcpy between two addresses."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        pointer = I8.as_pointer()
        memcpy = b.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, I64])
        to, from_ = b.inttoptr(args[0], pointer), b.inttoptr(args[1], pointer)
        b.call(memcpy, [to, from_, args[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any, nbytes: Any) -> Any:
    """Ask for the cache lines of `nbytes` bytes from `address` on; touches nothing."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        start = b.inttoptr(args[0], I8.as_pointer())

        def line(i: Any, state: list[Any]) -> list[Any]:
            prefetch_line(b, b.gep(start, [b.mul(i, I64(CACHE_LINE))]))
            return []

        _loop(b, b.udiv(b.add(args[1], I64(CACHE_LINE - 1)), I64(CACHE_LINE)), [], line)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def keep(typingctx: Any, array: Any) -> Any:
    """Keep `array` alive up to here. numba frees an array after the last mention of its name, and an address is none: call
    this after the last use of `array.ctypes.data`.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.void(array), codegen


@intrinsic
def take_ticket(typingctx: Any, counter: Any) -> Any:
    """Add one to the int64 at `counter`, atomically; the value before. How threads share out a list of work."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), I64(1), "monotonic")

    return types.int64(types.int64), codegen


@intrinsic
def finish_ticket(typingctx: Any, counter: Any) -> Any:
    """Say that a drawn unit is done: what was written before is seen by whoever `wait_finished` lets go on."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        done = b.inttoptr(b.add(args[0], I64(DONE)), I64.as_pointer())
        b.atomic_rmw("add", done, I64(1), "acq_rel")
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def wait_finished(typingctx: Any, counter: Any, units: Any) -> Any:
    """Wait until `units` units of the counter are done; now and then offer the core to whoever wants it."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        done = b.inttoptr(b.add(args[0], I64(DONE)), I64.as_pointer())
        before = b.block
        head, again, offer, after = (b.append_basic_block(name) for name in ("head", "again", "offer", "after"))
        b.branch(head)
        b.position_at_end(head)
        turn = b.phi(I64)
        turn.add_incoming(I64(1), before)
        b.cbranch(b.icmp_signed("<", b.load_atomic(done, "acquire", 8), args[1]), again, after)
        b.position_at_end(again)
        if _PAUSE:
            b.call(get_or_insert_function(b.module, ir.FunctionType(ir.VoidType(), []), _PAUSE), [])
        following = b.add(turn, I64(1))
        turn.add_incoming(following, again)
        b.cbranch(b.icmp_unsigned("==", b.and_(turn, I64(SPINS - 1)), I64(0)), offer, head)
        b.position_at_end(offer)
        if os.name == "posix":
            b.call(get_or_insert_function(b.module, ir.FunctionType(I32, []), "sched_yield"), [])
        turn.add_incoming(following, offer)
        b.branch(head)
        b.position_at_end(after)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def ticks(typingctx: Any) -> Any:
    """The processor's own clock, in ticks of a length that does not change (on x86)."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [])
        return b.call(get_or_insert_function(b.module, kind, "llvm.readcyclecounter"), [])

    return types.int64(), codegen


@intrinsic
def store_i64(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
    """Put element `index` into an int64 array."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store(args[2], _at(b, args[0], args[1], I64))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def two_to(typingctx: Any, n: Any) -> Any:
    """2**n for a whole n in [-126, 127], put together from its bits."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.bitcast(b.shl(b.add(b.fptosi(args[0], I32), I32(127)), I32(23)), F32)

    return types.float32(types.float32), codegen


@intrinsic
def in_pairs(typingctx: Any, tag: Any) -> Any:
    """`multiplies`, for a kernel."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return ir.IntType(1)(int(multiplies(tag)))

    return types.boolean(tag), codegen


@intrinsic
def factor_tag(typingctx: Any, tag: Any) -> Any:
    """The tag by which `score_rows` takes what it multiplies numbers of `tag` with."""
    kind = tag if multiplies(tag) else types.float32

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(kind, 0)

    return kind(tag), codegen


@intrinsic
def size(typingctx: Any, tag: Any) -> Any:
    """Bytes of an element."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return I64(max(1, tag.bitwidth // 8))

    return types.int64(tag), codegen
