"""Token filters: a row is scanned, not sorted; only the tokens that top-p may keep are."""

from functools import reduce
from typing import Any

import numpy as np
import torch
from llvmlite import ir as llvm
from numba import njit, prange, types
from numba.extending import intrinsic
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.mathematics import LOOSE, exp
from nbengine_kernels.cpu.runtime import FLOAT32, threads
from nbengine_kernels.reference import sampling as reference

_F32 = FLOAT32
_INF = np.float32(np.inf)
BLOCK = 64  # floats whose largest is found without a loop
PART = 512  # of a row, in which the likeliest tokens are looked for


@intrinsic
def _largest_of_blocks(typingctx: Any, base: Any, blocks: Any) -> Any:
    """The largest of `blocks` times BLOCK floats: LLVM makes no vectors of such a loop, as it may not drop a NaN."""
    lanes = ir.LANES
    kind = llvm.VectorType(ir.F32, lanes)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        def larger(x: Any, y: Any) -> Any:
            return b.select(b.fcmp_ordered(">", x, y), x, y)

        def step(i: Any, state: list[Any]) -> list[Any]:
            at = b.mul(i, ir.I64(BLOCK))
            places = (ir._at(b, args[0], b.add(at, ir.I64(n * lanes)), ir.F32) for n in range(BLOCK // lanes))
            return [larger(ir._load_vector(b, place, types.float32, lanes), top) for place, top in zip(places, state)]

        tops = ir._loop(b, args[1], [kind([float("-inf")] * lanes)] * (BLOCK // lanes), step)
        top = reduce(larger, tops)
        return reduce(larger, [b.extract_element(top, ir.I32(n)) for n in range(lanes)])

    return types.float32(types.int64, types.int64), codegen


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _largest(row: Any, width: Any) -> Any:
    blocks = width // BLOCK
    top = _largest_of_blocks(row, blocks)
    for v in range(blocks * BLOCK, width):
        top = max(top, ir.load(row, v, _F32))
    return top


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _drop_below(row: Any, width: Any, floor: Any) -> None:
    for v in range(width):
        x = ir.load(row, v, _F32)
        ir.store(row, v, -_INF if x < floor else x, _F32)


@njit(cache=True, error_model="numpy")
def _at_least(row: Any, width: Any, floor: Any) -> Any:
    """The values of a row that are >= floor and finite, in order."""
    count = 0
    for v in range(width):
        x = ir.load(row, v, _F32)
        if x >= floor and x > -_INF:
            count += 1
    values = np.empty(count, dtype=np.float32)
    count = 0
    for v in range(width):
        x = ir.load(row, v, _F32)
        if x >= floor and x > -_INF:
            values[count] = x
            count += 1
    return values


@njit(cache=True, error_model="numpy")
def _keep_top_k(row: Any, width: Any, k: Any, top: Any) -> None:
    """Widen a band below the maximum until it holds k values, then take the k-th of those."""
    depth = np.float32(4.0)
    values = _at_least(row, width, top - depth)
    while values.shape[0] < k and depth < np.float32(64.0):
        depth *= np.float32(2.0)
        values = _at_least(row, width, top - depth)
    if values.shape[0] < k:
        values = _at_least(row, width, -_INF)
    if values.shape[0] >= k:
        _drop_below(row, width, np.partition(values, values.shape[0] - k)[values.shape[0] - k])


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _mass(row: Any, width: Any, top: Any) -> Any:
    total = np.float64(0.0)
    for v in range(width):
        total += np.float64(exp(ir.load(row, v, _F32) - top))
    return total


@njit(cache=True, error_model="numpy")
def _keep_top_p(row: Any, width: Any, p: Any, top: Any) -> None:
    """Tokens so small that all of them together are within 1 - p go unsorted; the rest is sorted and summed."""
    total = _mass(row, width, top)
    budget = (1.0 - np.float64(np.float32(p))) * total
    floor = np.float32(top + np.log(max(budget / width, 1e-37)))
    values = np.sort(_at_least(row, width, floor))
    dropped = total
    for x in values:
        dropped -= np.float64(exp(x - top))
    dropped = max(dropped, 0.0)
    last = 0
    while last < values.shape[0] - 1:
        dropped += np.float64(exp(values[last] - top))
        if dropped > budget:
            break
        last += 1
    smallest = values[last]
    ties = last - np.searchsorted(values, smallest, side="left")
    for v in range(width):
        x = ir.load(row, v, _F32)
        if x < smallest or (x == smallest and ties > 0):
            ties -= 1 if x == smallest else 0
            ir.store(row, v, -_INF, _F32)


@njit(cache=True, error_model="numpy", parallel=True)
def _filter(logits: Any, rows: Any, width: Any, top_k: Any, top_p: Any, min_p: Any, counter: Any, workers: Any) -> None:
    """Addresses of (R,) int64, float32, float32, or 0 for a filter that is off."""
    for _ in prange(workers):
        while True:
            r = ir.take_ticket(counter)
            if r >= rows:
                break
            row = logits + r * width * 4
            top = _largest(row, width)
            if top > -_INF:
                if min_p != 0 and ir.load(min_p, r, _F32) > np.float32(0.0):
                    _drop_below(row, width, np.float32(top + np.log(ir.load(min_p, r, _F32))))
                if top_k != 0:
                    k = ir.load_i64(top_k, r)
                    if 0 < k < width:
                        _keep_top_k(row, width, k, top)
                if top_p != 0 and ir.load(top_p, r, _F32) < np.float32(1.0):
                    _keep_top_p(row, width, ir.load(top_p, r, _F32), top)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _sum_of_exp(row: Any, width: Any, top: Any) -> Any:
    """The sum of e**(x - top) over a row."""
    total = np.float32(0.0)
    for v in range(width):
        total += exp(ir.load(row, v, _F32) - top)
    return total


@njit(cache=True, error_model="numpy")
def _next_largest(part: Any, width: Any, bound: Any, after: Any) -> Any:
    """(value, index) of the largest of a part of a row that comes after (bound, after): less, or equal and further on."""
    top, place = -_INF, np.int64(-1)
    for v in range(width):
        x = ir.load(part, v, _F32)
        if (x > top or place < 0) and (x < bound or (x == bound and v > after)):
            top, place = x, np.int64(v)
    return top, place


@njit(cache=True, error_model="numpy", parallel=True)
def _likeliest(logits: Any, rows: Any, width: Any, count: Any, ids: Any, probs: Any, counter: Any, workers: Any) -> None:
    """Each row is scanned once for the largest of each of its parts; then the parts with the largest are looked into."""
    parts = (width + PART - 1) // PART
    for _ in prange(workers):
        tops, places = np.empty(parts, np.float32), np.empty(parts, np.int64)
        while True:
            r = ir.take_ticket(counter)
            if r >= rows:
                break
            row = logits + r * width * 4
            for q in range(parts):
                tops[q], places[q] = _largest(row + q * PART * 4, min(PART, width - q * PART)), -1
            top = tops.max()
            total = _sum_of_exp(row, width, top)
            for k in range(count):
                p = np.int64(tops.argmax())
                part, size = row + p * PART * 4, min(PART, width - p * PART)
                if places[p] < 0:  # where its largest stands is not known yet
                    places[p] = _next_largest(part, size, _INF, np.int64(-1))[1]
                ids[r, k], probs[r, k] = (
                    p * PART + max(places[p], 0),
                    exp(tops[p] - top) / total,
                )  # a row of NaN has no places
                tops[p], places[p] = _next_largest(part, size, tops[p], places[p])


@njit(cache=True, error_model="numpy", parallel=True)
def _apply_mask(logits: Any, stride: Any, rows: Any, width: Any, mask: Any, mask_stride: Any, workers: Any) -> None:
    words = (width + 31) // 32
    for w in prange(workers):
        for i in range(rows * words * w // workers, rows * words * (w + 1) // workers):
            r, word = i // words, i % words
            bits = ir.load_i32(mask, r * mask_stride + word)
            if bits != -1:
                for v in range(word * 32, min(word * 32 + 32, width)):
                    if (bits >> (v - word * 32)) & 1 == 0:
                        ir.store(logits, r * stride + v, -_INF, _F32)


def sample_filter(
    logits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """As `reference.sample_filter`; contiguous float32 here, other dtypes and strides there."""
    target = logits if out is None else out
    if logits.dtype != torch.float32 or target.dtype != torch.float32 or not target.is_contiguous():
        return reference.sample_filter(logits, top_k, top_p, min_p, out=out)
    if out is None:
        out = logits.clone(memory_format=torch.contiguous_format)
    elif out is not logits:
        out.copy_(logits)
    rows, width = out.shape
    if rows == 0 or (top_k is None and top_p is None and min_p is None):
        return out
    counter = torch.zeros(1, dtype=torch.int64)
    wanted = ((top_k, torch.int64), (top_p, torch.float32), (min_p, torch.float32))
    settings = [None if value is None else value.to(dtype).contiguous() for value, dtype in wanted]
    addresses = [0 if value is None else value.data_ptr() for value in settings]
    _filter(out.data_ptr(), rows, width, *addresses, counter.data_ptr(), min(rows, threads()))
    return out


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `reference.likeliest`, of two equal ones the first comes first; contiguous float32 here, others there."""
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        return reference.likeliest(logits, count)
    rows, width = logits.shape
    ids, probs = torch.empty((rows, count), dtype=torch.int64), torch.empty((rows, count), dtype=torch.float32)
    counter = torch.zeros(1, dtype=torch.int64)
    _likeliest(
        logits.data_ptr(), rows, width, count, ids.numpy(), probs.numpy(), counter.data_ptr(), max(1, min(rows, threads()))
    )
    return ids, probs


top_k_top_p_min_p = sample_filter
"""The same function under the name that lists what it does."""


def apply_grammar_bitmask(logits: Tensor, bitmask: Tensor) -> Tensor:
    """As `reference.apply_grammar_bitmask`; float32 with contiguous rows here, others there."""
    rows_fit = logits.stride(-1) == 1 and bitmask.stride(-1) == 1
    if logits.dtype != torch.float32 or bitmask.dtype != torch.int32 or not rows_fit:
        return reference.apply_grammar_bitmask(logits, bitmask)
    rows, width = logits.shape
    _apply_mask(logits.data_ptr(), logits.stride(0), rows, width, bitmask.data_ptr(), bitmask.stride(0), threads())
    return logits
