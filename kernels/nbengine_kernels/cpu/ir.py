"""The few operations that numba lacks: typed memory access by address, bfloat16, register tiles, an atomic counter.

Addresses are int64. A `tag` is a scalar whose numba type says how memory is read: float32 as it is; uint16 holds the
bits of a bfloat16. So one kernel source serves both dtypes, and numba compiles it once for each, whatever the shapes.

The tiles hold their accumulators in registers. A product's sum over k runs in order, in one accumulator for each
element, so a row's result does not depend on how many other rows are computed with it.
"""

import os
import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from nbengine_kernels.cpu.runtime import AVX512, BFLOAT16_PRODUCTS

I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
FAST = ("contract", "nsz", "reassoc")
LANES = 16
"""Columns of a tile. LLVM splits a vector of 16 floats into the registers that the machine has."""
CACHE_LINE = 64  # bytes
DONE = 64  # bytes from a counter of drawn units to that of units done, in a cache line of its own
COUNTER_BYTES = 128
SPINS = 1024  # looks at a counter between two offers of the core; a power of two
_PAUSE = "llvm.x86.sse2.pause" if platform.machine() in ("x86_64", "AMD64") else None


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


def prefetch_line(b: Any, address: Any) -> None:
    """Ask for the cache line at an i8 pointer, to be read, and kept in every level."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    b.call(get_or_insert_function(b.module, kind, "llvm.prefetch.p0"), [address, I32(0), I32(3), I32(1)])


# ---------------------------------------------------------------------------------------------------- scalars


@intrinsic
def load(typingctx: Any, base: Any, index: Any, tag: Any) -> Any:
    """Element `index` of the array at `base`, as float32."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
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
def two_to(typingctx: Any, n: Any) -> Any:
    """2**n for a whole n in [-126, 127], put together from its bits."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.bitcast(b.shl(b.add(b.fptosi(args[0], I32), I32(127)), I32(23)), F32)

    return types.float32(types.float32), codegen


# ---------------------------------------------------------------------------------------------------- tiles


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def _pairs(b: Any, words: Any) -> Any:
    """A vector of 32-bit words as twice as many bfloat16 numbers."""
    return b.bitcast(words, ir.VectorType(_BFloat(), 2 * words.type.count))


def _add_pairs(b: Any, x: Any, y: Any, z: Any) -> Any:
    """z + x * y of both numbers of each pair; x and y are bfloat16, z a vector of half as many float32."""
    function = ir.FunctionType(z.type, [z.type, x.type, y.type])
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * z.type.count}"
    return b.call(get_or_insert_function(b.module, function, name), [z, x, y])


def _load_words(b: Any, address: Any, lanes: int) -> Any:
    return b.load(b.bitcast(address, ir.VectorType(I32, lanes).as_pointer()), align=2)


def _make_product_tile(rows: int, lanes: int = LANES) -> Any:
    """C[0:rows, 0:lanes] += A[0:rows, 0:k] @ B[0:k, 0:lanes], A and C float32, B by its tag; strides in elements."""

    @intrinsic
    def product_tile(typingctx: Any, a: Any, lda: Any, b_: Any, ldb: Any, tag: Any, c: Any, ldc: Any, k: Any) -> Any:
        element = I16 if _is_bf16(tag) else F32

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            a, lda, right, ldb, _, c, ldc, k = args
            a_rows = [_at(b, a, b.mul(lda, I64(r)), F32) for r in range(rows)]
            c_rows = [_at(b, c, b.mul(ldc, I64(r)), F32) for r in range(rows)]

            def step(i: Any, state: list[Any]) -> list[Any]:
                vector = _load_vector(b, _at(b, right, b.mul(i, ldb), element), tag, lanes)
                scalars = [_splat(b, b.load(b.gep(row, [i])), lanes) for row in a_rows]
                return [_fma(b, x, vector, s) for x, s in zip(scalars, state)]

            start = [_load_vector(b, row, types.float32, lanes) for row in c_rows]
            for total, row in zip(_loop(b, k, start, step), c_rows):
                _store_vector(b, total, row)
            return context.get_dummy_value()

        i64 = types.int64
        return types.void(i64, i64, i64, i64, tag, i64, i64, i64), codegen

    return product_tile


product_tile_1, product_tile_2, product_tile_3, product_tile_6 = (_make_product_tile(rows) for rows in (1, 2, 3, 6))
# As wide as it takes to keep the multipliers busy, and as the registers allow: AVX-512 has twice as many, twice as wide.
FEW_COLUMNS, MANY_COLUMNS = (64, 64) if AVX512 else (32, 16)
product_tile_1x64 = _make_product_tile(1, 64)
product_tile_2_wide, product_tile_3_wide = (_make_product_tile(rows, FEW_COLUMNS) for rows in (2, 3))
product_tile_6_wide = _make_product_tile(6, MANY_COLUMNS)


@intrinsic
def pair_tile_6x64(typingctx: Any, a: Any, lda: Any, b_: Any, ldb: Any, c: Any, ldc: Any, k: Any) -> Any:
    """C[0:6, 0:64] += A[0:6, 0:k, 0:2] @ B[0:k, 0:64, 0:2] over k pairs of bfloat16, C float32; strides in pairs, ldc in
    elements. Only where the processor `multiplies` them."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if not BFLOAT16_PRODUCTS:  # then it is compiled with its callers, but never called
            return context.get_dummy_value()
        a, lda, right, ldb, c, ldc, k = args
        a_rows = [_at(b, a, b.mul(lda, I64(r)), I32) for r in range(6)]
        places = [_at(b, c, b.add(b.mul(ldc, I64(r)), I64(v)), F32) for r in range(6) for v in range(0, 64, LANES)]

        def step(i: Any, state: list[Any]) -> list[Any]:
            here = b.mul(i, ldb)
            vectors = [
                _pairs(b, _load_words(b, _at(b, right, b.add(here, I64(v)), I32), LANES)) for v in range(0, 64, LANES)
            ]
            rows = [_pairs(b, _splat(b, b.load(b.gep(row, [i]), align=2), LANES)) for row in a_rows]
            products = [(x, y) for x in rows for y in vectors]
            return [_add_pairs(b, x, y, total) for (x, y), total in zip(products, state)]

        start = [_load_vector(b, place, types.float32, LANES) for place in places]
        for total, place in zip(_loop(b, k, start, step), places):
            _store_vector(b, total, place)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(i64, i64, i64, i64, i64, i64, i64), codegen


@intrinsic
def round_row(typingctx: Any, source: Any, target: Any, n: Any) -> Any:
    """T[i] = S[i], float32 to bfloat16, i < n, a multiple of 16. They may begin at the same place."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, target, n = args

        def step(i: Any, state: list[Any]) -> list[Any]:
            at = b.mul(i, I64(LANES))
            value = _load_vector(b, _at(b, source, at, F32), types.float32, LANES)
            store_vector_at(b, value, target, at, types.uint16)
            return []

        _loop(b, b.udiv(n, I64(LANES)), [], step)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def pair_up(typingctx: Any, first: Any, second: Any, target: Any, n: Any) -> Any:
    """T[i] = (first[i], second[i]) of 16-bit numbers, i < n, a multiple of 16."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        first, second, target, n = args
        half = ir.VectorType(I16, LANES)
        order = ir.VectorType(I32, 2 * LANES)([lane // 2 + lane % 2 * LANES for lane in range(2 * LANES)])

        def step(i: Any, state: list[Any]) -> list[Any]:
            at = b.mul(i, I64(LANES))
            x, y = (b.load(b.bitcast(_at(b, row, at, I16), half.as_pointer()), align=2) for row in (first, second))
            both = b.shuffle_vector(x, y, order)
            b.store(both, b.bitcast(_at(b, target, at, I32), both.type.as_pointer()), align=2)
            return []

        _loop(b, b.udiv(n, I64(LANES)), [], step)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(i64, i64, i64, i64), codegen


def _sums_by_lane(b: Any, vectors: list[Any]) -> Any:
    """As many vectors as each has lanes -> the vector of their sums.

    Two vectors become one, half of whose lanes still belong to each, and so on: an addition, a blend and one shuffle a pair.
    """
    lanes = vectors[0].type.count
    while (half := len(vectors) // 2) > 0:
        mine = [lane & half == 0 for lane in range(lanes)]
        kept, moved = (
            ir.VectorType(I32, lanes)([(lane ^ flip) + (0 if first else lanes) for lane, first in enumerate(mine)])
            for flip in (0, half)
        )
        pairs = zip(vectors[:half], vectors[half:])
        vectors = [b.fadd(b.shuffle_vector(x, y, kept), b.shuffle_vector(x, y, moved)) for x, y in pairs]
    return vectors[0]


def _make_scores_tile(lanes: int) -> Any:
    """S[r, j] = Q[r, :] . K[j, :] for `lanes` keys that lie one after another, in `dim` elements that are a multiple of
    `lanes`, or of twice as many where bfloat16 is multiplied as it is (`multiplies`). Q comes as K then, else in float32.

    A row at a time, since keys come from the first-level cache as fast as they are multiplied.
    """

    @intrinsic
    def scores_tile(typingctx: Any, q: Any, rows: Any, dim: Any, keys: Any, tag: Any, s: Any, lds: Any) -> Any:
        paired = multiplies(tag)

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            q, rows, dim, keys, _, s, lds = args
            kind = ir.VectorType(F32, lanes)
            step, q_element, key_element = (2 * lanes if paired else lanes), (I16 if paired else F32), _element(tag)
            q, s = b.inttoptr(q, q_element.as_pointer()), b.inttoptr(s, F32.as_pointer())
            places = [_at(b, keys, b.mul(dim, I64(j)), key_element) for j in range(lanes)]

            def one_row(r: Any, _: list[Any]) -> list[Any]:
                row = b.gep(q, [b.mul(r, dim)])

                def add_products(i: Any, sums: list[Any]) -> list[Any]:
                    here = b.mul(i, I64(step))
                    x, theirs = b.gep(row, [here]), [b.gep(place, [here]) for place in places]
                    if paired:
                        both = _pairs(b, _load_words(b, x, lanes))
                        keys = [_pairs(b, _load_words(b, key, lanes)) for key in theirs]
                        return [_add_pairs(b, both, key, total) for total, key in zip(sums, keys)]
                    wide = _load_vector(b, x, types.float32, lanes)
                    return [_fma(b, wide, _load_vector(b, key, tag, lanes), total) for total, key in zip(sums, theirs)]

                sums = _loop(b, b.udiv(dim, I64(step)), [kind([0.0] * lanes)] * lanes, add_products)
                _store_vector(b, _sums_by_lane(b, sums), b.gep(s, [b.mul(r, lds)]))
                return []

            _loop(b, rows, [], one_row)
            return context.get_dummy_value()

        i64 = types.int64
        return types.void(i64, i64, i64, i64, tag, i64, i64), codegen

    return scores_tile


KEYS = 16 if AVX512 else 8
"""Keys of a scores tile: a register's lanes."""
scores_tile, scores_tile_8 = _make_scores_tile(KEYS), _make_scores_tile(8)


@intrinsic
def transpose_8x8(typingctx: Any, source: Any, lds: Any, tag: Any, target: Any, ldt: Any) -> Any:
    """T[j, i] = S[i, j] for an 8 x 8 square; S by its tag, T float32; strides in elements."""
    element = I16 if _is_bf16(tag) else F32

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, lds, _, target, ldt = args
        v = [_load_vector(b, _at(b, source, b.mul(lds, I64(r)), element), tag, 8) for r in range(8)]
        mask_type = ir.VectorType(I32, 8)
        low, high = mask_type([0, 8, 1, 9, 2, 10, 3, 11]), mask_type([4, 12, 5, 13, 6, 14, 7, 15])
        for _stage in range(3):  # a perfect shuffle of 64 elements by 8, one bit of the index at a time
            pairs = [(v[i], v[i + 4]) for i in range(4)]
            v = [b.shuffle_vector(x, y, mask) for x, y in pairs for mask in (low, high)]
        for r in range(8):
            _store_vector(b, v[r], _at(b, target, b.mul(ldt, I64(r)), F32))
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(i64, i64, tag, i64, i64), codegen


def _exp(b: Any, x: Any) -> Any:
    """e**x of a vector, as `mathematics.exp` has it."""
    lanes = x.type.count
    call = {
        name: get_or_insert_function(b.module, ir.FunctionType(x.type, [x.type] * n), f"llvm.{name}.v{lanes}f32")
        for name, n in (("maxnum", 2), ("minnum", 2), ("floor", 1))
    }

    def number(value: float) -> Any:
        return x.type([value] * lanes)

    x = b.call(call["minnum"], [b.call(call["maxnum"], [x, number(-87.0)]), number(88.0)])
    n = b.call(call["floor"], [_fma(b, x, number(1.4426950216293335), number(0.5))])
    r = _fma(b, n, number(2.1219444170128554e-4), _fma(b, n, number(-0.693359375), x))
    p = number(1.9875690108165145e-4)
    for c in (1.3981999363750219e-3, 8.3334520459175110e-3, 4.1665796190500259e-2, 1.6666665673255920e-1, 0.5, 1.0, 1.0):
        p = _fma(b, p, r, number(float(np.float32(c))))
    words = ir.VectorType(I32, lanes)
    power = b.shl(b.add(b.fptosi(n, words), words([127] * lanes)), words([23] * lanes))
    return b.fmul(p, b.bitcast(power, x.type))


def _make_softmax_row(width: int) -> Any:
    """Turn scores scale * s[first:last] into weights e**(score - max), the rest of s[0:width] into zeros; (new max, sum).

    One straight run of vector operations: a loop for each step would wait for its last sum, three times a row.
    """

    @intrinsic
    def softmax_row(typingctx: Any, s: Any, first: Any, last: Any, highest: Any, scale: Any) -> Any:
        kind, lanes = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)

        def fold(b: Any, vectors: list[Any], combine: Any) -> Any:
            """Combine all elements of all vectors into one scalar."""
            while len(vectors) > 1:
                vectors = [*vectors[2:], combine(vectors[0], vectors[1])]
            (v,) = vectors
            while (n := v.type.count) > 1:
                low, high = (ir.VectorType(I32, n // 2)(list(range(k, k + n // 2))) for k in (0, n // 2))
                v = combine(b.shuffle_vector(v, v, low), b.shuffle_vector(v, v, high))
            return b.extract_element(v, I32(0))

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            s, first, last, highest, scale = args
            begin, end = (_splat(b, b.trunc(at, I32), LANES) for at in (first, last))
            before, by = _splat(b, highest, LANES), _splat(b, scale, LANES)
            places = [_at(b, s, I64(i), F32) for i in range(0, width, LANES)]
            scores, seen = [], []
            for i, place in enumerate(places):
                index = lanes(list(range(i * LANES, (i + 1) * LANES)))
                inside = b.and_(b.icmp_signed(">=", index, begin), b.icmp_signed("<", index, end))
                seen.append(inside)
                scores.append(b.select(inside, b.fmul(_load_vector(b, place, types.float32, LANES), by), before))
            top = fold(b, [before, *scores], lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
            tops, zero = _splat(b, top, LANES), kind([0.0] * LANES)
            weights = [b.select(ok, _exp(b, b.fsub(x, tops)), zero) for x, ok in zip(scores, seen)]
            for weight, place in zip(weights, places):
                _store_vector(b, weight, place)
            total = fold(b, weights, b.fadd)
            return context.make_tuple(b, signature.return_type, [top, total])

        i64, f32 = types.int64, types.float32
        return types.UniTuple(f32, 2)(i64, i64, i64, f32, f32), codegen

    return softmax_row


softmax_row_64 = _make_softmax_row(64)


@intrinsic
def in_pairs(typingctx: Any, tag: Any) -> Any:
    """`multiplies`, for a kernel."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return ir.IntType(1)(int(multiplies(tag)))

    return types.boolean(tag), codegen


@intrinsic
def factor_tag(typingctx: Any, tag: Any) -> Any:
    """The tag by which `scores_tile` takes what it multiplies numbers of `tag` with."""
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
