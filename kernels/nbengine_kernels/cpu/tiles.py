"""Register tiles: the inner products of attention, and the softmax between them.

A tile holds its accumulators in registers. A product's sum over k runs in order, in one accumulator for each element, so
a row's result does not depend on how many other rows are computed with it. Addresses and tags are those of `ir`.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from nbengine_kernels.cpu.ir import (
    F32,
    I16,
    I32,
    I64,
    LANES,
    _add_pairs,
    _at,
    _BFloat,
    _element,
    _fma,
    _is_bf16,
    _load_vector,
    _loop,
    _splat,
    _store_vector,
    multiplies,
)
from nbengine_kernels.cpu.runtime import AVX512


def _pairs(b: Any, words: Any) -> Any:
    """A vector of 32-bit words as twice as many bfloat16 numbers."""
    return b.bitcast(words, ir.VectorType(_BFloat(), 2 * words.type.count))


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


product_tile_1, product_tile_2, product_tile_3 = (_make_product_tile(rows) for rows in (1, 2, 3))
# As wide as it takes to keep the multipliers busy, and as the registers allow: AVX-512 has twice as many, twice as wide.
FEW_COLUMNS = 64 if AVX512 else 32
product_tile_1x64 = _make_product_tile(1, 64)
product_tile_2_wide, product_tile_3_wide = (_make_product_tile(rows, FEW_COLUMNS) for rows in (2, 3))

TALL = 8 if AVX512 else 2
"""Rows of a column tile: as many sums as the registers hold."""
COLUMNS = 48


def _make_column_tile(adjacent_rows: bool) -> Any:
    """C[0:TALL, 0:columns] (+)= A[0:TALL, 0:k] @ B[0:k, 0:columns], for vectors * LANES columns, at most COLUMNS, which is the
    rows' distance in B and C. Elements are float32, or, where the tag says so, of A and B pairs of bfloat16.

    adjacent_rows: A[r, i] lies at a + r + i * stride, and the product is added to C; else at a + r * stride + i, and C is
    written.
    """

    @intrinsic
    def column_tile(typingctx: Any, a: Any, stride: Any, b_: Any, k: Any, c: Any, vectors: Any, tag: Any) -> Any:
        paired = multiplies(tag)

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            a, stride, right, k, c, vectors, _ = args
            after = b.append_basic_block("after")
            for width in range(COLUMNS // LANES, 0, -1):
                if width > 1:
                    fits, less = b.append_basic_block(f"vectors_{width}"), b.append_basic_block("less")
                    b.cbranch(b.icmp_signed(">=", vectors, I64(width)), fits, less)
                    b.position_at_end(fits)
                write(b, a, stride, right, k, c, range(0, width * LANES, LANES))
                b.branch(after)
                if width > 1:
                    b.position_at_end(less)
            b.position_at_end(after)
            return context.get_dummy_value()

        def write(b: Any, a: Any, stride: Any, right: Any, k: Any, c: Any, columns: range) -> None:
            left = b.inttoptr(a, I32.as_pointer())
            rows = [b.gep(left, [I64(r) if adjacent_rows else b.mul(stride, I64(r))]) for r in range(TALL)]
            places = [_at(b, c, I64(r * COLUMNS + v), F32) for r in range(TALL) for v in columns]

            def step(i: Any, state: list[Any]) -> list[Any]:
                here = b.mul(i, I64(COLUMNS))
                theirs = [_load_words(b, _at(b, right, b.add(here, I64(v)), I32), LANES) for v in columns]
                at = b.mul(i, stride) if adjacent_rows else i
                ours = [_splat(b, b.load(b.gep(row, [at]), align=2), LANES) for row in rows]
                products = [(x, y) for x in ours for y in theirs]
                if paired:
                    return [_add_pairs(b, _pairs(b, x), _pairs(b, y), z) for (x, y), z in zip(products, state)]
                kind = ir.VectorType(F32, LANES)
                return [_fma(b, b.bitcast(x, kind), b.bitcast(y, kind), z) for (x, y), z in zip(products, state)]

            if adjacent_rows:
                start = [_load_vector(b, place, types.float32, LANES) for place in places]
            else:
                start = [ir.VectorType(F32, LANES)([0.0] * LANES)] * len(places)
            for total, place in zip(_loop(b, k, start, step), places):
                _store_vector(b, total, place)

        i64 = types.int64
        return types.void(i64, i64, i64, i64, i64, i64, tag), codegen

    return column_tile


score_columns, add_columns = _make_column_tile(adjacent_rows=False), _make_column_tile(adjacent_rows=True)


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
