"""Weights in panels of WIDTH outputs, and the register tiles that multiply by them.

A weight (O, I) becomes ceil(O / WIDTH) panels, each read from front to back, the outputs side by side:

=========  ========================================================================================
tag        a panel
=========  ========================================================================================
float32    [I][WIDTH] float32
uint16     [I / 2][WIDTH][2] bfloat16
int8       [I][WIDTH] codes
uint8      [I / 32] groups: [2][WIDTH] bfloat16, scale and offset; [4][WIDTH] words of 8 codes of 4
           bits, input 2k in nibble k and input 2k + 1 in nibble k + 4
=========  ========================================================================================

I is padded to an even number. Where the processor has tiles of its own, bfloat16 lies in those instead (`amx_linear`).

An element's sum runs over the inputs in order in one accumulator (int4: one a group, and one over the groups), whatever the
tile's height, so a row's result does not depend on how many others are computed with it.

A tile's accumulators must fit the registers and be enough to keep the multipliers busy: on AVX-512 up to 6 rows by 4
vectors of 16 (24 of 32 registers), on AVX2 4 rows by one of 16 (8 of 16). Where the processor multiplies bfloat16 itself,
activations come as bfloat16 to all but float32 weights, and one instruction does two inputs. Codes are turned into bfloat16
in registers, which is exact; scales come in when a sum is complete.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import ir as llvm
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.runtime import AVX512, STREAMS_BY
from nbengine_kernels.quantization import INT4_GROUP

HEIGHTS = (6, 4, 2, 1) if AVX512 else (4, 2, 1)
LANES = ir.LANES
WIDTH = 4 * LANES if AVX512 else LANES
_I8, _I16, _I32, _I64, _F32 = ir.I8, ir.I16, ir.I32, ir.I64, ir.F32
_floats, _words, _bytes = (llvm.VectorType(kind, LANES) for kind in (_F32, _I32, _I8))
_shorts, _bfloats = (llvm.VectorType(kind, 2 * LANES) for kind in (_I16, ir._BFloat()))
# What a tile reads at a time, of an output: so many bytes, which hold so many pairs of inputs.
_STEP_BYTES = {types.float32: 8, types.uint16: 4, types.int8: 2, types.uint8: 4}
_STEP_PAIRS = {types.float32: 1, types.uint16: 1, types.int8: 1, types.uint8: 4}
_VECTOR_BYTES = {types.float32: 4 * LANES, types.uint16: 4 * LANES, types.int8: LANES, types.uint8: 4 * LANES}
_STEPS_OF_GROUP = INT4_GROUP // 8
GROUP_HEAD = 2 * 2 * WIDTH  # bytes: a group's scales and offsets


def _all(value: int) -> Any:
    return _words([value] * LANES)


def _load(b: Any, address: Any, kind: Any, further: int = 0) -> Any:
    """A vector, `further` bytes from `address`; no alignment is assumed."""
    return b.load(b.bitcast(b.gep(address, [_I64(further)]), kind.as_pointer()), align=1)


def _load_floats(b: Any, address: Any, tag: Any, k: int) -> tuple[Any, Any]:
    """Pair k of a step, for LANES outputs: float32 weights of an even input and of the next; int4 codes stay 0..15."""
    if tag == types.float32:
        return _load(b, address, _floats), _load(b, address, _floats, 4 * WIDTH)
    if tag == types.int8:
        even, odd = (b.sext(_load(b, address, _bytes, n * WIDTH), _words) for n in range(2))
    elif tag == types.uint8:
        word = _load(b, address, _words)
        even, odd = (b.and_(b.lshr(word, _all(shift)), _all(15)) for shift in (4 * k, 4 * k + 16))
    else:
        both = _load(b, address, _words)
        return b.bitcast(b.shl(both, _all(16)), _floats), b.bitcast(b.and_(both, _all(-65536)), _floats)
    return b.sitofp(even, _floats), b.sitofp(odd, _floats)


def load_bfloats(b: Any, address: Any, tag: Any, k: int) -> Any:
    """The same as bfloat16, the two inputs of each output side by side."""
    if tag == types.uint16:
        return _load(b, address, _bfloats)
    if tag == types.uint8:  # a table of 16 numbers, twice: of a code's 16 bits only the lowest 5 count
        values = np.arange(32) % 16
        table = _shorts([int(x) for x in values.astype(np.float32).view(np.uint32) >> 16])
        look_up = get_or_insert_function(
            b.module, llvm.FunctionType(_shorts, [_shorts, _shorts]), "llvm.x86.avx512.permvar.hi.512"
        )
        codes = b.lshr(_load(b, address, _words), _all(4 * k))
        return b.bitcast(b.call(look_up, [table, b.bitcast(codes, _shorts)]), _bfloats)
    even, odd = (b.bitcast(x, _words) for x in _load_floats(b, address, tag, k))  # whole numbers: their low halves are zero
    return b.bitcast(b.or_(b.lshr(even, _all(16)), odd), _bfloats)


class _Tile:
    """Writes the code of one tile: `height` rows by the vectors of `panels` panels. The arguments are panel_tile's."""

    def __init__(self, b: Any, args: Any, height: int, panels: int, row_tag: Any, tag: Any, c_tag: Any, once: bool) -> None:
        self.once = once
        self.b, self.height, self.panels, self.row_tag, self.tag, self.c_tag = b, height, panels, row_tag, tag, c_tag
        _, a, lda, _, self.pairs, self.sums, panel, stride, _, *others = args
        self.scale, self.bias, self.c, self.ldc, _, self.ahead, self.slow = others
        element = _I16 if row_tag == types.uint16 else _F32
        self.rows = [ir._at(b, a, b.mul(lda, _I64(r)), element) for r in range(height)]
        self.starts = [ir._at(b, panel, b.mul(stride, _I64(p)), _I8) for p in range(panels)]
        self.step_bytes = _STEP_BYTES[tag] * WIDTH
        self.places = [(p, v) for p in range(panels) for v in range(WIDTH // LANES)]

    def write(self) -> None:
        # int4 has its sums in registers twice, so a tall tile takes a panel's halves one after the other
        share = len(self.places) // 2 if self.tag == types.uint8 and AVX512 and self.height > 3 else len(self.places)
        for first in range(0, len(self.places), share):
            places = self.places[first : first + share]
            sums = self._sum_groups(places, first == 0) if self.tag == types.uint8 else self._sum(places)
            self._store(sums, first, share)

    def _sum(self, places: list[Any]) -> list[Any]:
        """The sum of each row, for each of the vectors at `places`."""

        def step(i: Any, state: list[Any]) -> list[Any]:
            offset = self.b.mul(i, _I64(self.step_bytes))
            self._fetch(offset, self.step_bytes)
            return self._add_step(i, offset, places, state)

        return ir._loop(self.b, self.pairs, self._zeros(places), step)

    def _sum_groups(self, places: list[Any], fetch: bool) -> list[Any]:
        """The same of int4: a group's sum of inputs times codes is scaled, its sum of inputs times the offset added."""
        b, bytes_of_quarter = self.b, GROUP_HEAD // _STEPS_OF_GROUP + self.step_bytes
        groups = b.sdiv(self.pairs, _I64(INT4_GROUP // 2))

        def group(g: Any, state: list[Any]) -> list[Any]:
            first = b.mul(g, _I64(_STEPS_OF_GROUP))
            begin = b.mul(first, _I64(bytes_of_quarter))

            def step(i: Any, partial: list[Any]) -> list[Any]:
                if fetch:
                    self._fetch(b.add(begin, b.mul(i, _I64(bytes_of_quarter))), bytes_of_quarter)
                offset = b.add(b.add(begin, _I64(GROUP_HEAD)), b.mul(i, _I64(self.step_bytes)))
                return self._add_step(b.add(first, i), offset, places, partial)

            partial = ir._loop(b, _I64(_STEPS_OF_GROUP), self._zeros(places), step)
            heads = [b.gep(self.starts[p], [b.add(begin, _I64(v * LANES * 2))]) for p, v in places]
            scales, offsets = (
                [ir._load_vector(b, b.gep(head, [_I64(n * WIDTH * 2)]), types.uint16, LANES) for head in heads]
                for n in range(2)
            )
            new = []
            for r in range(self.height):
                total = b.load(ir._at(b, self.sums, b.add(b.mul(groups, _I64(r)), g), _F32))
                total = ir._splat(b, total, LANES)
                for n, (scale, offset) in enumerate(zip(scales, offsets)):
                    at = r * len(places) + n
                    new.append(ir._fma(b, scale, partial[at], ir._fma(b, offset, total, state[at])))
            return new

        return ir._loop(b, groups, self._zeros(places), group)

    def _zeros(self, places: list[Any]) -> list[Any]:
        return [_floats([0.0] * LANES)] * (self.height * len(places))

    def _fetch(self, read: Any, following: int) -> None:
        """Ask for what will be read next, as far on as this product is: `read` bytes, and now the `following` ones."""
        b = self.b
        further = b.add(self.ahead, b.lshr(b.mul(read, _I64(self.panels)), self.slow))
        level = 1 if STREAMS_BY else 2  # Intel's first-level cache would have no room
        for line in range(0, following * self.panels, ir.CACHE_LINE):
            ir.prefetch_line(b, b.inttoptr(b.add(further, _I64(line)), _I8.as_pointer()), once=self.once, level=level)

    def _add_step(self, i: Any, offset: Any, places: list[Any], state: list[Any]) -> list[Any]:
        """Add the products of step i, whose weights lie `offset` bytes behind each panel's start."""
        b, pairs = self.b, _STEP_PAIRS[self.tag]
        weights = [b.gep(self.starts[p], [b.add(offset, _I64(v * _VECTOR_BYTES[self.tag]))]) for p, v in places]
        for k in range(pairs):
            pair = b.add(b.mul(i, _I64(pairs)), _I64(k))
            add = self._add_bfloats if self.row_tag == types.uint16 else self._add_floats
            state = add(pair, k, weights, state)
        return state

    def _add_bfloats(self, i: Any, k: int, weights: list[Any], state: list[Any]) -> list[Any]:
        """state[r, v] += inputs 2i and 2i + 1 of row r, as one 32-bit number, times theirs: pair k at weights[v]."""
        b = self.b
        pairs = [load_bfloats(b, at, self.tag, k) for at in weights]
        inputs = [b.load(b.gep(b.bitcast(row, _I32.as_pointer()), [i]), align=2) for row in self.rows]
        wide = [b.bitcast(ir._splat(b, x, LANES), _bfloats) for x in inputs]
        products = [(x, w) for x in wide for w in pairs]
        return [ir._add_pairs(b, x, w, total) for (x, w), total in zip(products, state)]

    def _add_floats(self, i: Any, k: int, weights: list[Any], state: list[Any]) -> list[Any]:
        """The same, of float32 rows."""
        b, wide = self.b, [_load_floats(self.b, at, self.tag, k) for at in weights]
        for n in range(2):
            at = b.add(b.shl(i, _I64(1)), _I64(n))
            inputs = [ir._splat(b, b.load(b.gep(row, [at])), LANES) for row in self.rows]
            products = [(x, pair[n]) for x in inputs for pair in wide]
            state = [ir._fma(b, x, w, total) for (x, w), total in zip(products, state)]
        return state

    def _store(self, sums: list[Any], first: int, share: int) -> None:
        """Vectors `first` to `first + share` of each row of C."""
        b = self.b
        for n in range(share):
            column = _I64((first + n) * LANES)
            by, plus = (
                ir._load_vector(b, ir._at(b, at, column, _F32), types.float32, LANES) for at in (self.scale, self.bias)
            )
            for r in range(self.height):
                value = b.fadd(b.fmul(sums[r * share + n], by), plus)
                ir.store_vector_at(b, value, self.c, b.add(b.mul(self.ldc, _I64(r)), column), self.c_tag)


def _make_panel_tile(heights: tuple[int, ...], panels: int) -> Any:
    """C[0:n, 0 : panels * WIDTH] = A[0:n] @ panels * scale + bias; n, the largest height within `rows`, is returned.

    A has `pairs` pairs of inputs a row and its rows `lda` elements apart; `stride` is in bytes from panel to panel. scale
    and bias, one float32 an output, point at the first panel's. `ahead` is where this thread will read next: with each pair
    of inputs, what lies `bytes read >> slow` further there is asked for, so that memory brings it while this product is
    computed. For int4, `sums` points at each row's sums over groups of 32 inputs.
    """

    @intrinsic
    def panel_tile(
        typingctx: Any, rows: Any, a: Any, lda: Any, row_tag: Any, pairs: Any, sums: Any,
        panel: Any, stride: Any, tag: Any, scale: Any, bias: Any, c: Any, ldc: Any, c_tag: Any, ahead: Any, slow: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            after = b.append_basic_block("after")
            ends = []
            for height in heights:
                if height > 1:
                    fits, less = b.append_basic_block(f"rows_{height}"), b.append_basic_block("less")
                    b.cbranch(b.icmp_signed(">=", args[0], _I64(height)), fits, less)
                    b.position_at_end(fits)
                _Tile(b, args, height, panels, row_tag, tag, c_tag, heights == (1,)).write()
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
            i64, i64, i64, row_tag, i64, i64, i64, i64, tag, i64, i64, i64, i64, c_tag, i64, i64
        ), codegen  # fmt: skip

    return panel_tile


panel_tile = _make_panel_tile(HEIGHTS, 1)
PANELS_OF_ONE_ROW = 1 if AVX512 else 2
one_row_tile = _make_panel_tile((1,), PANELS_OF_ONE_ROW)


def _padded(weight: Tensor) -> Tensor:
    """Itself, if it fills its panels."""
    missing = (0, weight.shape[1] % 2, 0, -weight.shape[0] % WIDTH)
    return F.pad(weight, missing) if any(missing) else weight


def pack_rows(weight: Tensor) -> Tensor:
    """(O, I) float32 or int8 -> (ceil(O / WIDTH), I', WIDTH), padded with zeros; perhaps a view."""
    padded = _padded(weight)
    return padded.view(-1, WIDTH, padded.shape[1]).transpose(1, 2)


def pack_pairs(weight: Tensor) -> Tensor:
    """(O, I) bfloat16 -> (ceil(O / WIDTH), I' / 2, WIDTH, 2), padded with zeros; perhaps a view."""
    padded = _padded(weight)
    return padded.view(-1, WIDTH, padded.shape[1] // 2, 2).transpose(1, 2)


def pack_int4(codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Codes (O, I) uint8 0..15, scale and zero (O, G) float32 -> (ceil(O / WIDTH), G, bytes of a group) uint8.

    An offset is what a code of 0 stands for.
    """
    panels, groups = -(-codes.shape[0] // WIDTH), scale.shape[1]
    heads = torch.stack((scale, zero - 8.0 * scale), dim=-1).to(torch.bfloat16)
    heads = F.pad(heads, (0, 0, 0, 0, 0, -len(heads) % WIDTH)).view(panels, WIDTH, groups, 2).permute(0, 2, 3, 1)
    eights = _padded(codes).view(panels, WIDTH, groups, _STEPS_OF_GROUP, 8)
    nibbles = eights[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    words = (nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)).permute(0, 2, 3, 1, 4)  # of four bytes each
    parts = (heads.contiguous().view(torch.uint8), words)
    return torch.cat([part.reshape(panels, groups, -1) for part in parts], dim=2)


def pack_outputs(values: Tensor | None, outputs: int, fill: float) -> Tensor:
    """A float32 an output, as many as the panels have; `fill` where there are none."""
    given = torch.full((outputs,), fill) if values is None else values.float()
    return F.pad(given, (0, -outputs % WIDTH)).contiguous()
