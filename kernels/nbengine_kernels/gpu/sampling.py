"""Token filters without a sort: each threshold is found bit by bit on an order-preserving integer image of the logits.

A bisection over 32 bits costs 32 passes over a row that stays in the cache, whatever k and p are (the idea of radix
selection; FlashInfer's samplers reject sorting for the same reason).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _image(x):
    """float32 -> int64 in [0, 2**32), in the same order."""
    bits = x.to(tl.int32, bitcast=True).to(tl.int64)
    half = 1 << 31
    return tl.where(bits >= 0, bits + half, half - 1 - (bits & (half - 1)))


@triton.jit
def filter_kernel(
    logits, top_k, top_p, min_p, width,
    HAS_K: tl.constexpr, HAS_P: tl.constexpr, HAS_MIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a row, in place."""
    row = logits + tl.program_id(0).to(tl.int64) * width
    offsets = tl.arange(0, BLOCK)
    minus_infinity = float("-inf")
    running = tl.full([BLOCK], minus_infinity, tl.float32)
    for base in range(0, width, BLOCK):
        running = tl.maximum(running, tl.load(row + base + offsets, mask=base + offsets < width, other=minus_infinity))
    top = tl.max(running, 0)
    if top > minus_infinity:
        if HAS_MIN:
            share = tl.load(min_p + tl.program_id(0))
            if share > 0:
                floor = top + tl.log(share)
                for base in range(0, width, BLOCK):
                    inside = base + offsets < width
                    x = tl.load(row + base + offsets, mask=inside, other=minus_infinity)
                    tl.store(row + base + offsets, minus_infinity, mask=inside & (x < floor))
                tl.debug_barrier()
        if HAS_K:
            k = tl.load(top_k + tl.program_id(0))
            if (k > 0) & (k < width):
                kth = tl.full([], 0, tl.int64)  # the largest image that at least k tokens reach
                for bit in range(32):
                    candidate = kth + (tl.full([], 1, tl.int64) << (31 - bit))
                    reached = tl.full([BLOCK], 0, tl.int32)
                    for base in range(0, width, BLOCK):
                        inside = base + offsets < width
                        x = tl.load(row + base + offsets, mask=inside, other=minus_infinity)
                        reached += (inside & (_image(x) >= candidate)).to(tl.int32)
                    kth = tl.where(tl.sum(reached, 0) >= k, candidate, kth)
                for base in range(0, width, BLOCK):
                    inside = base + offsets < width
                    x = tl.load(row + base + offsets, mask=inside, other=minus_infinity)
                    tl.store(row + base + offsets, minus_infinity, mask=inside & (_image(x) < kth))
                tl.debug_barrier()
        if HAS_P:
            p = tl.load(top_p + tl.program_id(0))
            if p < 1.0:
                mass = tl.zeros([BLOCK], tl.float32)
                for base in range(0, width, BLOCK):
                    x = tl.load(row + base + offsets, mask=base + offsets < width, other=minus_infinity)
                    mass += tl.exp(x - top)
                budget = (1.0 - p) * tl.sum(mass, 0)
                least = tl.full([], 0, tl.int64)  # the largest image such that all tokens below it may go
                for bit in range(32):
                    candidate = least + (tl.full([], 1, tl.int64) << (31 - bit))
                    mass = tl.zeros([BLOCK], tl.float32)
                    for base in range(0, width, BLOCK):
                        x = tl.load(row + base + offsets, mask=base + offsets < width, other=minus_infinity)
                        mass += tl.where(_image(x) < candidate, tl.exp(x - top), 0.0)
                    fits = (tl.sum(mass, 0) <= budget) & (candidate <= tl.max(_image(tl.full([1], top, tl.float32)), 0))
                    least = tl.where(fits, candidate, least)
                # how many of the tokens exactly at `least` may go as well: the first ones, never the last
                below = tl.zeros([BLOCK], tl.float32)
                equal = tl.full([BLOCK], 0, tl.int32)
                weight = tl.zeros([BLOCK], tl.float32)
                for base in range(0, width, BLOCK):
                    inside = base + offsets < width
                    x = tl.load(row + base + offsets, mask=inside, other=minus_infinity)
                    below += tl.where(_image(x) < least, tl.exp(x - top), 0.0)
                    at = inside & (_image(x) == least)
                    equal += at.to(tl.int32)
                    weight += tl.where(at, tl.exp(x - top), 0.0)
                count = tl.sum(equal, 0)
                each = tl.sum(weight, 0) / tl.maximum(count, 1)
                spare = ((budget - tl.sum(below, 0)) / tl.maximum(each, 1e-37)).to(tl.int32)
                spare = tl.minimum(tl.maximum(spare, 0), count - 1)
                seen = tl.full([], 0, tl.int32)
                for base in range(0, width, BLOCK):
                    inside = base + offsets < width
                    x = tl.load(row + base + offsets, mask=inside, other=minus_infinity)
                    at = inside & (_image(x) == least)
                    rank = seen + tl.cumsum(at.to(tl.int32), 0)
                    goes = (_image(x) < least) | (at & (rank <= spare))
                    tl.store(row + base + offsets, minus_infinity, mask=inside & goes)
                    seen += tl.sum(at.to(tl.int32), 0)


@triton.jit
def bitmask_kernel(logits, bitmask, stride, mask_stride, width, BLOCK: tl.constexpr):
    """A program a (row, block of tokens)."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < width
    word = tl.load(bitmask + row * mask_stride + token // 32, mask=inside, other=-1)
    forbidden = ((word >> (token % 32)) & 1) == 0
    tl.store(logits + row * stride + token, float("-inf"), mask=inside & forbidden)


def sample_filter(
    logits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """As `reference.sample_filter`."""
    if out is None:
        out = logits.clone(memory_format=torch.contiguous_format)
    elif out is not logits:
        out.copy_(logits)
    rows, width = out.shape
    if rows and not (top_k is None and top_p is None and min_p is None):
        filter_kernel[(rows,)](
            out, out if top_k is None else top_k, out if top_p is None else top_p, out if min_p is None else min_p, width,
            HAS_K=top_k is not None, HAS_P=top_p is not None, HAS_MIN=min_p is not None, BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
    return out


top_k_top_p_min_p = sample_filter
"""The same function under the name that lists what it does."""


def apply_grammar_bitmask(logits: Tensor, bitmask: Tensor) -> Tensor:
    """As `reference.apply_grammar_bitmask`."""
    rows, width = logits.shape
    if rows:
        grid = (rows, triton.cdiv(width, _BLOCK))
        bitmask_kernel[grid](logits, bitmask, logits.stride(0), bitmask.stride(0), width, BLOCK=_BLOCK, num_warps=4)
    return logits
