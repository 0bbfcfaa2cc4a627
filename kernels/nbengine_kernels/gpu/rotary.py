"""Rotary position embedding and the KV write."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rotary_kernel(
    positions, query, key, cos_sin, query_stride, key_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a (token, head), query heads first, then key heads."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < HALF
    angles = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * HALF)
    cos = tl.load(angles + i, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(angles + HALF + i, mask=inside, other=0.0).to(tl.float32)
    base = query + token * query_stride + head * DIM
    if head >= HEADS:
        base = key + token * key_stride + (head - HEADS) * DIM
    raw = tl.load(base + i, mask=inside, other=0.0)
    first = raw.to(tl.float32)
    second = tl.load(base + HALF + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(base + i, (first * cos - second * sin).to(raw.dtype), mask=inside)
    tl.store(base + HALF + i, (second * cos + first * sin).to(raw.dtype), mask=inside)


@triton.jit
def write_kv_kernel(
    key, value, key_cache, value_cache, slots, key_stride, value_stride, key_block_stride, value_block_stride,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a (token, KV head)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot >= 0:
        i = tl.arange(0, BLOCK)
        inside = i < DIM
        block, place = slot // BLOCK_SIZE, (head * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM
        k = tl.load(key + token * key_stride + head * DIM + i, mask=inside)
        v = tl.load(value + token * value_stride + head * DIM + i, mask=inside)
        tl.store(key_cache + block * key_block_stride + place + i, k, mask=inside)
        tl.store(value_cache + block * value_block_stride + place + i, v, mask=inside)


def rotary_embedding(positions: Tensor, query: Tensor, key: Tensor, cos_sin: Tensor) -> None:
    """As `reference.rotary_embedding`."""
    tokens, heads, dim = query.shape
    half = cos_sin.shape[1] // 2
    if tokens:
        rotary_kernel[(tokens, heads + key.shape[1])](
            positions, query, key, cos_sin, query.stride(0), key.stride(0),
            HEADS=heads, DIM=dim, HALF=half, BLOCK=triton.next_power_of_2(half), num_warps=1,
        )  # fmt: skip


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """As `reference.write_kv`."""
    tokens, kv_heads, dim = min(key.shape[0], slot_mapping.shape[0]), key.shape[1], key.shape[2]
    if tokens:
        write_kv_kernel[(tokens, kv_heads)](
            key, value, key_cache, value_cache, slot_mapping,
            key.stride(0), value.stride(0), key_cache.stride(0), value_cache.stride(0),
            BLOCK_SIZE=key_cache.shape[2], DIM=dim, BLOCK=triton.next_power_of_2(dim), num_warps=1,
        )  # fmt: skip


def rotary_write_kv(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """As `reference.rotary_write_kv`; two launches."""
    rotary_embedding(positions, query, key, cos_sin)
    write_kv(key, value, key_cache, value_cache, slot_mapping)
