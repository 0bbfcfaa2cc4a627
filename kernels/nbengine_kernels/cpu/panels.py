"""Weights in panels of 16 outputs, and the register tiles that multiply by them.

A weight (O, I) becomes ceil(O / 16) panels, each read from front to back, the 16 outputs side by side:

=========  ===========================================  ======================================
tag        a panel                                      beside it
=========  ===========================================  ======================================
float32    [I][16] float32
uint16     [I / 2][16][2] bfloat16
int8       [I][16] codes                                a scale an output
uint8      [I / 2][16] bytes, the even input's 4 bits   [I / 32][2][16] bfloat16: scale, offset
           low
=========  ===========================================  ======================================

I is padded to an even number. An element's sum runs over the inputs in order in one accumulator, whatever the row count.
"""

from typing import Any

import torch
import torch.nn.functional as F
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from nbengine_kernels.cpu import ir as tiles
from nbengine_kernels.quantization import INT4_GROUP

WIDTH = tiles.LANES
_I8, _I32, _I64, _F32 = tiles.I8, tiles.I32, tiles.I64, tiles.F32
_floats, _words, _bytes = (ir.VectorType(kind, WIDTH) for kind in (_F32, _I32, _I8))
_PAIR_BYTES = {types.float32: 8 * WIDTH, types.uint16: 4 * WIDTH, types.int8: 2 * WIDTH, types.uint8: WIDTH}


def _all(value: int) -> Any:
    return _words([value] * WIDTH)


def _load_pair(b: Any, address: Any, tag: Any) -> tuple[Any, Any]:
    """The float32 weights of two inputs in a row, for 16 outputs; int4 codes stay 0..15."""
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


def _make_panel_tile(rows: int, panels: int) -> Any:
    """C[0:rows, p, 0:16] = A[0:rows, 0:2 * pairs] @ panel p.

    A is float32, its rows `lda` elements apart; `stride` is in bytes from panel to panel; C is [rows][panels][16], dense.
    `ahead` is where this thread will read next: with each pair of inputs, what lies `pairs read >> slow` further there is
    asked for, so that memory brings it while this product is computed.
    For int4: `scales` points at the first panel's, `sums` at each row's sums over groups of 32 inputs, pairs / 16 a row.
    """

    @intrinsic
    def panel_tile(
        typingctx: Any, a: Any, lda: Any, panel: Any, stride: Any, tag: Any, c: Any, pairs: Any, scales: Any, sums: Any,
        ahead: Any, slow: Any,
    ) -> Any:  # fmt: skip
        pair_bytes = _PAIR_BYTES[tag]
        zero = [_floats([0.0] * WIDTH)] * (rows * panels)

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            a, lda, panel, stride, _, c, pairs, scales, sums, ahead, slow = args
            a_rows = [tiles._at(b, a, b.mul(lda, _I64(r)), _F32) for r in range(rows)]
            starts = [tiles._at(b, panel, b.mul(stride, _I64(p)), _I8) for p in range(panels)]

            def step(i: Any, state: list[Any]) -> list[Any]:
                first = b.shl(i, _I64(1))
                second = b.add(first, _I64(1))
                even = [tiles._splat(b, b.load(b.gep(row, [first])), WIDTH) for row in a_rows]
                odd = [tiles._splat(b, b.load(b.gep(row, [second])), WIDTH) for row in a_rows]
                new = list(state)
                further = b.add(ahead, b.lshr(b.mul(i, _I64(pair_bytes * panels)), slow))
                for line in range(0, pair_bytes * panels, tiles.CACHE_LINE):
                    tiles.prefetch_line(b, b.inttoptr(b.add(further, _I64(line)), _I8.as_pointer()))
                for p, start in enumerate(starts):
                    weights = _load_pair(b, b.gep(start, [b.mul(i, _I64(pair_bytes))]), tag)
                    for r in range(rows):
                        at = r * panels + p
                        new[at] = tiles._fma(b, odd[r], weights[1], tiles._fma(b, even[r], weights[0], new[at]))
                return new

            in_group = INT4_GROUP // 2
            groups = b.sdiv(pairs, _I64(in_group))

            def group_step(g: Any, state: list[Any]) -> list[Any]:
                base = b.mul(g, _I64(in_group))
                partial = tiles._loop(b, _I64(in_group), zero, lambda i, inner: step(b.add(base, i), inner))
                new = list(state)
                for p in range(panels):
                    at_scale = b.mul(b.add(b.mul(groups, _I64(p)), g), _I64(2 * WIDTH))
                    pointers = [tiles._at(b, scales, b.add(at_scale, _I64(n * WIDTH)), tiles.I16) for n in range(2)]
                    scale, offset = (tiles._load_vector(b, at, types.uint16, WIDTH) for at in pointers)
                    for r in range(rows):
                        at = r * panels + p
                        total = b.load(tiles._at(b, sums, b.add(b.mul(groups, _I64(r)), g), _F32))
                        shifted = tiles._fma(b, offset, tiles._splat(b, total, WIDTH), new[at])
                        new[at] = tiles._fma(b, scale, partial[at], shifted)
                return new

            grouped = tag == types.uint8
            totals = tiles._loop(b, groups, zero, group_step) if grouped else tiles._loop(b, pairs, zero, step)
            for i, total in enumerate(totals):
                tiles._store_vector(b, total, tiles._at(b, c, _I64(i * WIDTH), _F32))
            return context.get_dummy_value()

        i64 = types.int64
        return types.void(i64, i64, i64, i64, tag, i64, i64, i64, i64, i64, i64), codegen

    return panel_tile


panel_tile_1x2, panel_tile_1x1 = _make_panel_tile(1, 2), _make_panel_tile(1, 1)
panel_tile_2x1, panel_tile_4x1 = _make_panel_tile(2, 1), _make_panel_tile(4, 1)


def _padded(weight: Tensor) -> Tensor:
    return F.pad(weight, (0, weight.shape[1] % 2, 0, -weight.shape[0] % WIDTH))


def pack_rows(weight: Tensor) -> Tensor:
    """(O, I) float32 or int8 -> (ceil(O / 16), I', 16), padded with zeros."""
    padded = _padded(weight)
    return padded.view(-1, WIDTH, padded.shape[1]).transpose(1, 2).contiguous()


def pack_pairs(weight: Tensor) -> Tensor:
    """(O, I) bfloat16 -> (ceil(O / 16), I' / 2, 16, 2), padded with zeros."""
    padded = _padded(weight)
    return padded.view(-1, WIDTH, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()


def pack_nibbles(codes: Tensor) -> Tensor:
    """(O, I) uint8 codes 0..15 -> (ceil(O / 16), I / 2, 16) bytes."""
    padded = _padded(codes)
    nibbles = padded[:, 0::2] | (padded[:, 1::2] << 4)
    return nibbles.view(-1, WIDTH, nibbles.shape[1]).transpose(1, 2).contiguous()


def pack_scales(scale: Tensor, zero: Tensor) -> Tensor:
    """scale, zero (O, G) float32 -> (ceil(O / 16), G, 2, 16) bfloat16: scale, and what a code of 0 stands for."""
    both = torch.stack((scale, zero - 8.0 * scale), dim=-1)
    both = F.pad(both, (0, 0, 0, 0, 0, -scale.shape[0] % WIDTH))
    return both.view(-1, WIDTH, scale.shape[1], 2).permute(0, 2, 3, 1).to(torch.bfloat16).contiguous()
