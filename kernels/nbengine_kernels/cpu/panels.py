"""Weights in panels of WIDTH outputs, and the register tiles that multiply by them.

A weight (O, I) becomes ceil(O / WIDTH) panels, each read from front to back, the outputs side by side:

=========  ===========================================  ==========================================
tag        a panel                                      beside it
=========  ===========================================  ==========================================
float32    [I][WIDTH] float32
uint16     [I / 2][WIDTH][2] bfloat16
int8       [I][WIDTH] codes
uint8      [I / 2][WIDTH] bytes, the even input's 4     [I / 32][2][WIDTH] bfloat16: scale, offset
           bits low
=========  ===========================================  ==========================================

I is padded to an even number. An element's sum runs over the inputs in order in one accumulator, whatever the tile's
height, so a row's result does not depend on how many others are computed with it.

A tile's accumulators must fit the registers and be enough to keep the multipliers busy: on AVX-512 up to 6 rows by 4
vectors of 16 (24 of 32 registers), on AVX2 4 rows by one of 16 (8 of 16). Where the processor multiplies bfloat16 itself,
activations come as bfloat16 to bfloat16 weights, and one instruction does two inputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic
from torch import Tensor

from nbengine_kernels.cpu import ir as tiles
from nbengine_kernels.cpu.runtime import AVX512
from nbengine_kernels.quantization import INT4_GROUP

HEIGHTS = (6, 4, 2, 1) if AVX512 else (4, 2, 1)
LANES = tiles.LANES
WIDTH = 4 * LANES if AVX512 else LANES
_I8, _I32, _I64, _F32 = tiles.I8, tiles.I32, tiles.I64, tiles.F32
_floats, _words, _bytes = (ir.VectorType(kind, LANES) for kind in (_F32, _I32, _I8))
_PAIR_BYTES = {types.float32: 8, types.uint16: 4, types.int8: 2, types.uint8: 1}  # of an output


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_bfloats = ir.VectorType(_BFloat(), 2 * LANES)


def _all(value: int) -> Any:
    return _words([value] * LANES)


def _load_pair(b: Any, address: Any, tag: Any) -> tuple[Any, Any]:
    """The float32 weights of two inputs in a row, for LANES outputs; int4 codes stay 0..15."""
    if tag == types.float32:
        second = b.gep(address, [_I64(4 * WIDTH)])
        return tuple(b.load(b.bitcast(at, _floats.as_pointer()), align=4) for at in (address, second))
    if tag == types.uint16:
        both = b.load(b.bitcast(address, _words.as_pointer()), align=2)
        return b.bitcast(b.shl(both, _all(16)), _floats), b.bitcast(b.and_(both, _all(-65536)), _floats)
    if tag == types.int8:
        second = b.gep(address, [_I64(WIDTH)])
        codes = [b.load(b.bitcast(at, _bytes.as_pointer()), align=1) for at in (address, second)]
        return tuple(b.sitofp(b.sext(code, _words), _floats) for code in codes)
    both = b.zext(b.load(b.bitcast(address, _bytes.as_pointer()), align=1), _words)
    return b.sitofp(b.and_(both, _all(15)), _floats), b.sitofp(b.lshr(both, _all(4)), _floats)


def _add_pair(b: Any, rows: list[Any], row_tag: Any, weights: list[Any], tag: Any, i: Any, state: list[Any]) -> list[Any]:
    """state[r, v] += inputs 2i and 2i + 1 of row r times theirs in vector v of the weights."""
    if row_tag == types.uint16:
        kind = ir.FunctionType(_floats, [_floats, _bfloats, _bfloats])
        product = get_or_insert_function(b.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
        pairs = [b.bitcast(b.load(b.bitcast(at, _words.as_pointer()), align=2), _bfloats) for at in weights]
        both = [b.bitcast(tiles._splat(b, b.load(b.gep(row, [i]), align=2), LANES), _bfloats) for row in rows]
        return [b.call(product, [state[r * len(pairs) + v], x, w]) for r, x in enumerate(both) for v, w in enumerate(pairs)]
    wide = [_load_pair(b, at, tag) for at in weights]
    for n in range(2):
        at = b.add(b.shl(i, _I64(1)), _I64(n))
        inputs = [tiles._splat(b, b.load(b.gep(row, [at])), LANES) for row in rows]
        state = [
            tiles._fma(b, x, pair[n], state[r * len(wide) + v]) for r, x in enumerate(inputs) for v, pair in enumerate(wide)
        ]
    return state


def _make_panel_tile(heights: tuple[int, ...], panels: int) -> Any:
    """C[0:n, 0 : panels * WIDTH] = A[0:n] @ panels * scale + bias; n, the largest height within `rows`, is returned.

    A has `pairs` pairs of inputs a row and its rows `lda` elements apart; `stride` is in bytes from panel to panel. scale
    and bias, one float32 an output, point at the first panel's. `ahead` is where this thread will read next: with each pair
    of inputs, what lies `bytes read >> slow` further there is asked for, so that memory brings it while this product is
    computed. For int4: `groups` points at the first panel's scales and offsets, `sums` at each row's sums over groups of 32
    inputs.
    """

    @intrinsic
    def panel_tile(
        typingctx: Any, rows: Any, a: Any, lda: Any, row_tag: Any, pairs: Any, sums: Any,
        panel: Any, stride: Any, tag: Any, groups: Any, scale: Any, bias: Any, c: Any, ldc: Any, c_tag: Any,
        ahead: Any, slow: Any,
    ) -> Any:  # fmt: skip
        pair_bytes = _PAIR_BYTES[tag] * WIDTH
        places = [(p, v) for p in range(panels) for v in range(WIDTH // LANES)]  # of the vectors of a row of the tile
        grouped = tag == types.uint8

        def tile(b: Any, args: Any, height: int) -> None:
            _, a, lda, _, pairs, sums, panel, stride, _, groups, scale, bias, c, ldc, _, ahead, slow = args
            # a pair of bfloat16 inputs is taken as one 32-bit number
            a_rows = [
                tiles._at(b, a, b.mul(lda, _I64(r)), tiles.I16 if row_tag == types.uint16 else _F32) for r in range(height)
            ]
            if row_tag == types.uint16:
                a_rows = [b.bitcast(row, _I32.as_pointer()) for row in a_rows]
            starts = [tiles._at(b, panel, b.mul(stride, _I64(p)), _I8) for p in range(panels)]
            vector_bytes = LANES * (_PAIR_BYTES[tag] if tag in (types.uint16, types.uint8) else _PAIR_BYTES[tag] // 2)

            def step(i: Any, state: list[Any]) -> list[Any]:
                further = b.add(ahead, b.lshr(b.mul(i, _I64(pair_bytes * panels)), slow))
                for line in range(0, pair_bytes * panels, tiles.CACHE_LINE):
                    tiles.prefetch_line(b, b.inttoptr(b.add(further, _I64(line)), _I8.as_pointer()))
                offset = b.mul(i, _I64(pair_bytes))
                weights = [b.gep(starts[p], [b.add(offset, _I64(v * vector_bytes))]) for p, v in places]
                return _add_pair(b, a_rows, row_tag, weights, tag, i, state)

            zero = [_floats([0.0] * LANES)] * (height * len(places))
            in_group = INT4_GROUP // 2
            count = b.sdiv(pairs, _I64(in_group))

            def group_step(g: Any, state: list[Any]) -> list[Any]:
                base = b.mul(g, _I64(in_group))
                partial = tiles._loop(b, _I64(in_group), zero, lambda i, inner: step(b.add(base, i), inner))
                totals = [b.load(tiles._at(b, sums, b.add(b.mul(count, _I64(r)), g), _F32)) for r in range(height)]
                new = list(state)
                for n, (p, v) in enumerate(places):
                    at_scale = b.mul(b.add(b.mul(count, _I64(p)), g), _I64(2 * WIDTH))
                    pointers = [
                        tiles._at(b, groups, b.add(at_scale, _I64(k * WIDTH + v * LANES)), tiles.I16) for k in range(2)
                    ]
                    by, offset = (tiles._load_vector(b, at, types.uint16, LANES) for at in pointers)
                    for r in range(height):
                        at = r * len(places) + n
                        shifted = tiles._fma(b, offset, tiles._splat(b, totals[r], LANES), new[at])
                        new[at] = tiles._fma(b, by, partial[at], shifted)
                return new

            totals = tiles._loop(b, count, zero, group_step) if grouped else tiles._loop(b, pairs, zero, step)
            for n in range(len(places)):
                column = _I64(n * LANES)
                by, plus = (
                    tiles._load_vector(b, tiles._at(b, at, column, _F32), types.float32, LANES) for at in (scale, bias)
                )
                for r in range(height):
                    value = b.fadd(b.fmul(totals[r * len(places) + n], by), plus)
                    tiles.store_vector_at(b, value, c, b.add(b.mul(ldc, _I64(r)), column), c_tag)

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            after = b.append_basic_block("after")
            ends = []
            for height in heights:
                if height > 1:
                    fits, less = b.append_basic_block(f"rows_{height}"), b.append_basic_block("less")
                    b.cbranch(b.icmp_signed(">=", args[0], _I64(height)), fits, less)
                    b.position_at_end(fits)
                tile(b, args, height)
                ends.append((_I64(height), b.block))
                b.branch(after)
                if height > 1:
                    b.position_at_end(less)
            b.position_at_end(after)
            done = b.phi(_I64)
            for end in ends:
                done.add_incoming(*end)
            return done

        i64 = types.int64
        return types.int64(
            i64, i64, i64, row_tag, i64, i64, i64, i64, tag, i64, i64, i64, i64, i64, c_tag, i64, i64
        ), codegen  # fmt: skip

    return panel_tile


panel_tile = _make_panel_tile(HEIGHTS, 1)
PANELS_OF_ONE_ROW = 1 if AVX512 else 2
one_row_tile = _make_panel_tile((1,), PANELS_OF_ONE_ROW)


def _padded(weight: Tensor) -> Tensor:
    return F.pad(weight, (0, weight.shape[1] % 2, 0, -weight.shape[0] % WIDTH))


def pack_rows(weight: Tensor) -> Tensor:
    """(O, I) float32 or int8 -> (ceil(O / WIDTH), I', WIDTH), padded with zeros."""
    padded = _padded(weight)
    return padded.view(-1, WIDTH, padded.shape[1]).transpose(1, 2).contiguous()


def pack_pairs(weight: Tensor) -> Tensor:
    """(O, I) bfloat16 -> (ceil(O / WIDTH), I' / 2, WIDTH, 2), padded with zeros."""
    padded = _padded(weight)
    return padded.view(-1, WIDTH, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()


def pack_nibbles(codes: Tensor) -> Tensor:
    """(O, I) uint8 codes 0..15 -> (ceil(O / WIDTH), I / 2, WIDTH) bytes."""
    padded = _padded(codes)
    nibbles = padded[:, 0::2] | (padded[:, 1::2] << 4)
    return nibbles.view(-1, WIDTH, nibbles.shape[1]).transpose(1, 2).contiguous()


def pack_groups(scale: Tensor, zero: Tensor) -> Tensor:
    """scale, zero (O, G) float32 -> (ceil(O / WIDTH), G, 2, WIDTH) bfloat16: scale, and what a code of 0 stands for."""
    both = torch.stack((scale, zero - 8.0 * scale), dim=-1)
    both = F.pad(both, (0, 0, 0, 0, 0, -scale.shape[0] % WIDTH))
    return both.view(-1, WIDTH, scale.shape[1], 2).permute(0, 2, 3, 1).to(torch.bfloat16).contiguous()


def pack_outputs(values: Tensor | None, outputs: int, fill: float) -> Tensor:
    """A float32 an output, as many as the panels have; `fill` where there are none."""
    given = torch.full((outputs,), fill) if values is None else values.float()
    return F.pad(given, (0, -outputs % WIDTH)).contiguous()
