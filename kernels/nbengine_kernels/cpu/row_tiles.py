"""Register tiles of attention for few rows: scores of keys, softmax of a row, weighted sums of values.

Each reads keys or values once for up to three rows, and asks for a line at `ahead` with each that it uses: memory is kept
busy all the time, which a burst of requests between two tiles would not do (that took a third longer). A row's result does
not depend on how many others are computed with it. Addresses and tags are those of `ir`.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nbengine_kernels.cpu import vectors
from nbengine_kernels.cpu.ir import (
    CACHE_LINE,
    F32,
    I8,
    I16,
    I32,
    I64,
    LANES,
    _add_pairs,
    _at,
    _element,
    _fma,
    _is_bf16,
    _load_vector,
    _loop,
    _splat,
    _store_vector,
    multiplies,
    prefetch_line,
    store_vector_at,
)
from nbengine_kernels.cpu.runtime import AVX512
from nbengine_kernels.cpu.tiles import KEYS, _load_words, _pairs

WIDE = 64 if AVX512 else 32
"""Columns that `add_values` takes at a time where it can."""


def _for_some_rows(b: Any, rows: Any, write: Callable[[int], None]) -> Any:
    """Code for 3, 2 or 1 of `rows` rows (4 are 2 and 2); the number that were done."""
    after = b.append_basic_block("after")
    ends = []
    three = b.or_(b.icmp_signed("==", rows, I64(3)), b.icmp_signed(">", rows, I64(4)))
    for count, fits in ((3, three), (2, b.icmp_signed(">", rows, I64(1))), (1, None)):
        if fits is not None:
            here, less = b.append_basic_block(f"rows_{count}"), b.append_basic_block("less")
            b.cbranch(fits, here, less)
            b.position_at_end(here)
        write(count)
        ends.append((I64(count), b.block))
        b.branch(after)
        if fits is not None:
            b.position_at_end(less)
    b.position_at_end(after)
    done = b.phi(I64)
    for end in ends:
        done.add_incoming(*end)
    return done


def _ask(b: Any, ahead: Any, offset: Any, nbytes: int) -> None:
    """Ask for the lines of `nbytes` bytes, `offset` elements of ahead's kind from it."""
    place = b.bitcast(b.gep(ahead, [offset]), I8.as_pointer())
    for line in range(0, nbytes, CACHE_LINE):
        prefetch_line(b, b.gep(place, [I64(line)]))


def _fold(b: Any, x: Any, y: Any, bit: int) -> Any:
    """Sums of two vectors' lanes, pair by pair of lanes that differ in `bit`: x's where it is 0, y's where it is 1."""
    lanes = x.type.count
    mine = [lane & bit == 0 for lane in range(lanes)]
    kept, moved = (
        ir.VectorType(I32, lanes)([(lane ^ flip) + (0 if first else lanes) for lane, first in enumerate(mine)])
        for flip in (0, bit)
    )
    return b.fadd(b.shuffle_vector(x, y, kept), b.shuffle_vector(x, y, moved))


def _sums_by_lane(b: Any, sums: list[Any]) -> Any:
    """As many vectors as each has lanes -> the vector of their sums.

    Two vectors become one, half of whose lanes still belong to each, and so on: an addition, a blend and one shuffle a pair.
    """
    while (half := len(sums) // 2) > 0:
        sums = [_fold(b, x, y, half) for x, y in zip(sums[:half], sums[half:])]
    return sums[0]


def _make_score_rows(lanes: int) -> Any:
    """S[r, j] = Q[r, :] . K[j, :] for `lanes` keys that lie one after another, for up to three of `rows` rows; their number
    is returned. `dim` is a multiple of `lanes`, or of twice as many where bfloat16 is multiplied as it is (`multiplies`). Q
    comes as K then, else in float32. room: for 3 * LANES**2 floats.

    Keys are read in order by one instruction, which the hardware can run ahead of: taking eight at a time is faster from the
    first-level cache, and a tenth slower from memory.
    """

    @intrinsic
    def score_rows(
        typingctx: Any, q: Any, rows: Any, dim: Any, keys: Any, tag: Any, s: Any, lds: Any, ahead: Any, room: Any
    ) -> Any:
        paired = multiplies(tag)

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            q, rows, dim, keys, _, s, lds, ahead, room = args
            zero = ir.VectorType(F32, lanes)([0.0] * lanes)
            step, q_element, key_element = (2 * lanes if paired else lanes), (I16 if paired else F32), _element(tag)
            step_bytes = step * (2 if _is_bf16(tag) else 4)

            def take(address: Any, kind: Any) -> Any:
                return _pairs(b, _load_words(b, address, lanes)) if paired else _load_vector(b, address, kind, lanes)

            def write(count: int) -> None:
                """A key at a time: its products with each row, summed into a vector; then all vectors into a number each."""
                ours = [_at(b, q, b.mul(dim, I64(r)), q_element) for r in range(count)]
                parts = [_at(b, room, I64(r * lanes * lanes), F32) for r in range(count)]
                theirs, asked = _at(b, keys, I64(0), key_element), _at(b, ahead, I64(0), key_element)

                def one_key(j: Any, _: list[Any]) -> list[Any]:
                    first = b.mul(j, dim)

                    def add_products(i: Any, sums: list[Any]) -> list[Any]:
                        here = b.mul(i, I64(step))
                        there = b.add(first, here)
                        key = take(b.gep(theirs, [there]), tag)
                        _ask(b, asked, there, step_bytes)
                        add = _add_pairs if paired else _fma
                        return [add(b, take(b.gep(row, [here]), types.float32), key, z) for row, z in zip(ours, sums)]

                    sums = _loop(b, b.udiv(dim, I64(step)), [zero] * count, add_products)
                    for total, part in zip(sums, parts):
                        _store_vector(b, total, b.gep(part, [b.mul(j, I64(lanes))]))
                    return []

                _loop(b, I64(lanes), [], one_key)
                for r, part in enumerate(parts):
                    sums = [_load_vector(b, b.gep(part, [I64(j * lanes)]), types.float32, lanes) for j in range(lanes)]
                    total = _sums_by_lane(b, sums)
                    _store_vector(b, total, _at(b, s, b.mul(lds, I64(r)), F32))

            return _for_some_rows(b, rows, write)

        i64 = types.int64
        return types.int64(i64, i64, i64, i64, tag, i64, i64, i64, i64), codegen

    return score_rows


score_rows, score_rows_8 = _make_score_rows(KEYS), _make_score_rows(8)


def _make_add_values(columns: int) -> Any:
    """O[r, 0:columns] += W[r, 0:count] @ V[0:count, 0:columns], O in float32, for up to three of `rows` rows; their number
    is returned. dim: from row to row of V and O, in elements. W is as `softmax_row` leaves it, its rows `ldw` floats apart.
    """

    @intrinsic
    def add_values(
        typingctx: Any, w: Any, ldw: Any, rows: Any, values: Any, count: Any, tag: Any, o: Any, dim: Any, ahead: Any
    ) -> Any:
        paired, element = multiplies(tag), _element(tag)
        row_bytes = columns * (2 if _is_bf16(tag) else 4)

        def in_pairs(b: Any, x: Any, y: Any) -> list[Any]:
            """Two rows of bfloat16 side by side, LANES pairs a vector."""
            wide = min(columns, 2 * LANES)
            kind = ir.VectorType(I16, wide)
            both = []
            for at in range(0, columns, wide):
                two = [b.load(b.bitcast(b.gep(row, [I64(at)]), kind.as_pointer()), align=2) for row in (x, y)]
                for part in range(0, wide, LANES):
                    order = [part + lane // 2 + lane % 2 * wide for lane in range(2 * LANES)]
                    pairs = b.shuffle_vector(*two, ir.VectorType(I32, 2 * LANES)(order))
                    both.append(_pairs(b, b.bitcast(pairs, ir.VectorType(I32, LANES))))
            return both

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            w, ldw, rows, values, count, _, o, dim, ahead = args
            first, asked = _at(b, values, I64(0), element), _at(b, ahead, I64(0), element)

            def add_pair(i: Any, weights: list[Any], state: list[Any]) -> list[Any]:
                """Two keys; beside the last of an odd number, whose other weight is 0, itself."""
                at = b.shl(i, I64(1))
                other = b.add(at, I64(1))
                other = b.select(b.icmp_signed("<", other, count), other, at)
                here, there = b.mul(at, dim), b.mul(other, dim)
                _ask(b, asked, here, row_bytes)
                _ask(b, asked, there, row_bytes)
                vectors = in_pairs(b, b.gep(first, [here]), b.gep(first, [there]))
                ours = [_pairs(b, _splat(b, b.load(b.gep(row, [i]), align=4), LANES)) for row in weights]
                return [_add_pairs(b, x, y, z) for (x, y), z in zip([(x, y) for x in ours for y in vectors], state)]

            def add_one(i: Any, weights: list[Any], state: list[Any]) -> list[Any]:
                here = b.mul(i, dim)
                _ask(b, asked, here, row_bytes)
                places = [b.gep(first, [b.add(here, I64(c))]) for c in range(0, columns, LANES)]
                vectors = [_load_vector(b, place, tag, LANES) for place in places]
                ours = [_splat(b, b.load(b.gep(row, [i])), LANES) for row in weights]
                return [_fma(b, x, y, z) for (x, y), z in zip([(x, y) for x in ours for y in vectors], state)]

            def write(some: int) -> None:
                kind = I32 if paired else F32
                weights = [_at(b, w, b.mul(ldw, I64(r)), kind) for r in range(some)]
                row = [b.mul(dim, I64(r)) for r in range(some)]
                places = [_at(b, o, b.add(at, I64(c)), F32) for at in row for c in range(0, columns, LANES)]
                start = [_load_vector(b, place, types.float32, LANES) for place in places]
                add = add_pair if paired else add_one
                steps = b.lshr(b.add(count, I64(1)), I64(1)) if paired else count
                for total, place in zip(_loop(b, steps, start, lambda i, state: add(i, weights, state)), places):
                    _store_vector(b, total, place)

            return _for_some_rows(b, rows, write)

        i64 = types.int64
        return types.int64(i64, i64, i64, i64, i64, tag, i64, i64, i64), codegen

    return add_values


add_values_wide, add_values_16 = _make_add_values(WIDE), _make_add_values(16)


def _combined(b: Any, values: list[Any], combine: Any) -> Any:
    """All elements of all vectors combined into one scalar."""
    while len(values) > 1:
        values = [*values[2:], combine(values[0], values[1])]
    (v,) = values
    while (n := v.type.count) > 1:
        low, high = (ir.VectorType(I32, n // 2)(list(range(k, k + n // 2))) for k in (0, n // 2))
        v = combine(b.shuffle_vector(v, v, low), b.shuffle_vector(v, v, high))
    return b.extract_element(v, I32(0))


def _make_softmax_row(width: int) -> Any:
    """Turn scores s[first:last] into weights 2**(scale * score - top), the rest of s[0:width] into zeros; (new top, sum).
    The weights are bfloat16, side by side from s on, where those are multiplied (`multiplies` of the tag).

    One straight run of vector operations: a loop for each step would wait for its last sum, three times a row.
    """

    @intrinsic
    def softmax_row(typingctx: Any, s: Any, first: Any, last: Any, highest: Any, scale: Any, tag: Any) -> Any:
        kind, lanes = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
        weight_tag = tag if multiplies(tag) else types.float32

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            s, first, last, highest, scale, _ = args
            begin, end = (_splat(b, b.trunc(at, I32), LANES) for at in (first, last))
            before, by = _splat(b, highest, LANES), _splat(b, scale, LANES)
            starts = range(0, width, LANES)
            scores, seen = [], []
            for i in starts:
                index = lanes(list(range(i, i + LANES)))
                inside = b.and_(b.icmp_signed(">=", index, begin), b.icmp_signed("<", index, end))
                seen.append(inside)
                score = b.fmul(_load_vector(b, _at(b, s, I64(i), F32), types.float32, LANES), by)
                scores.append(b.select(inside, score, before))
            top = _combined(b, [before, *scores], lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
            tops, zero = _splat(b, top, LANES), kind([0.0] * LANES)
            weights = [b.select(ok, vectors.write_exp2(b, b.fsub(x, tops)), zero) for x, ok in zip(scores, seen)]
            for weight, i in zip(weights, starts):
                store_vector_at(b, weight, s, I64(i), weight_tag)
            total = _combined(b, weights, b.fadd)
            return context.make_tuple(b, signature.return_type, [top, total])

        i64, f32 = types.int64, types.float32
        return types.UniTuple(f32, 2)(i64, i64, i64, f32, f32, tag), codegen

    return softmax_row


softmax_row_64 = _make_softmax_row(64)
