"""Register tiles of attention for many rows: its two products, and what brings queries and values into their form.

A tile holds its accumulators in registers. A product's sum over k runs in order, in one accumulator for each element, so
a row's result does not depend on how many other rows are computed with it. Addresses and tags are those of `ir`.
"""

from typing import Any

from llvmlite import ir
from numba import types
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


TALL = 8 if AVX512 else 2
"""Rows of a column tile: as many sums as the registers hold."""
COLUMNS = 48


def _make_column_tile(adjacent_rows: bool) -> Any:
    """C[0:TALL, 0:columns] (+)= A[0:TALL, 0:k] @ B[0:k, 0:columns], for vectors * LANES columns, at most COLUMNS, by which
    the rows of B and C are apart. Elements are float32, or, where the tag says so, of A and B pairs of bfloat16.

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


KEYS = 16 if AVX512 else 8
"""Keys that are taken at a time: a register's lanes."""


def turn_index(b: Any, v: list[Any], bits: int) -> list[Any]:
    """The elements of vectors, with the bits of each one's index turned left by some: a perfect shuffle for each."""
    half, lanes = len(v) // 2, v[0].type.count
    kind = ir.VectorType(I32, lanes)
    low, high = (kind([lane // 2 + first + lane % 2 * lanes for lane in range(lanes)]) for first in (0, lanes // 2))
    for _ in range(bits):
        v = [b.shuffle_vector(x, y, mask) for x, y in zip(v[:half], v[half:]) for mask in (low, high)]
    return v


def _make_transpose(n: int) -> Any:
    """T[j, i] = S[i, j] for a square of n by n; S by its tag, T float32; strides in elements."""

    @intrinsic
    def transpose(typingctx: Any, source: Any, lds: Any, tag: Any, target: Any, ldt: Any) -> Any:
        element = I16 if _is_bf16(tag) else F32

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            source, lds, _, target, ldt = args
            v = [_load_vector(b, _at(b, source, b.mul(lds, I64(r)), element), tag, n) for r in range(n)]
            v = turn_index(b, v, n.bit_length() - 1)
            for r in range(n):
                _store_vector(b, v[r], _at(b, target, b.mul(ldt, I64(r)), F32))
            return context.get_dummy_value()

        i64 = types.int64
        return types.void(i64, i64, tag, i64, i64), codegen

    return transpose


transpose_8x8, transpose_16x16 = _make_transpose(8), _make_transpose(16)
