"""Rotary position embedding and the KV write, one pass over a token's heads."""

from typing import Any

import torch
from numba import njit, prange
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.mathematics import LOOSE
from nbengine_kernels.cpu.runtime import FLOAT32, rows_of, tag_of, workers_for
from nbengine_kernels.reference.cache import write_kv as reference_write_kv
from nbengine_kernels.reference.rotary import rotary_embedding as reference_rotary_embedding

_F32 = FLOAT32


@v.inline
def _turn_part(first: Any, second: Any, cos: Any, sin: Any, i: Any, count: Any, tag: Any, table_tag: Any) -> None:
    a, b = v.load_some(first, i, count, tag), v.load_some(second, i, count, tag)
    c, s = v.load_some(cos, i, count, table_tag), v.load_some(sin, i, count, table_tag)
    v.store_some(first, i, a * c - b * s, count, tag)
    v.store_some(second, i, b * c + a * s, count, tag)


@njit(cache=True, error_model="numpy")
def _turn(heads: Any, count: Any, dim: Any, half: Any, table: Any, tag: Any, table_tag: Any) -> None:
    """Turn `count` heads of one token by the angles at address `table`."""
    full = half // ir.LANES * ir.LANES
    sin = table + half * ir.size(table_tag)
    for h in range(count):
        first = heads + h * dim * ir.size(tag)
        second = first + half * ir.size(tag)
        for i in range(0, full, ir.LANES):
            _turn_part(first, second, table, sin, i, ir.LANES, tag, table_tag)
        if full < half:
            _turn_part(first, second, table, sin, full, half - full, tag, table_tag)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def _put(source: Any, cache: Any, block_stride: Any, slot: Any, kv_heads: Any, block_size: Any, row_bytes: Any) -> None:
    """Copy one token's heads into its slot; block_stride in bytes."""
    block, offset = slot // block_size, slot % block_size
    target = cache + block * block_stride + offset * row_bytes
    for h in range(kv_heads):
        ir.copy(target + h * block_size * row_bytes, source + h * row_bytes, row_bytes)


@njit(cache=True, error_model="numpy", fastmath=LOOSE)
def turn_and_put(
    positions: Any, wide_positions: Any, query: Any, query_stride: Any, key: Any, key_stride: Any,
    value: Any, value_stride: Any, cos_sin: Any, key_cache: Any, key_block: Any, value_cache: Any, value_block: Any,
    slots: Any, heads: Any, kv_heads: Any, dim: Any, half: Any, block_size: Any,
    first: Any, last: Any, tag: Any, table_tag: Any,
) -> None:  # fmt: skip
    """Tokens first..last: turn (unless half is 0), then write (unless slots is 0). Strides in elements."""
    step = ir.size(tag)
    for t in range(first, last):
        if t + 1 < last:  # what another core wrote comes slowly
            ir.prefetch(query + (t + 1) * query_stride * step, heads * dim * step)
            ir.prefetch(key + (t + 1) * key_stride * step, kv_heads * dim * step)
            ir.prefetch(value + (t + 1) * value_stride * step, kv_heads * dim * step)
        if half > 0:
            position = ir.load_i64(positions, t) if wide_positions else ir.load_i32(positions, t)
            table = cos_sin + position * 2 * half * ir.size(table_tag)
            _turn(query + t * query_stride * step, heads, dim, half, table, tag, table_tag)
            _turn(key + t * key_stride * step, kv_heads, dim, half, table, tag, table_tag)
        if slots != 0:
            slot = ir.load_i64(slots, t)
            if slot >= 0:
                row = dim * step
                _put(key + t * key_stride * step, key_cache, key_block * step, slot, kv_heads, block_size, row)
                _put(value + t * value_stride * step, value_cache, value_block * step, slot, kv_heads, block_size, row)


@njit(cache=True, error_model="numpy", parallel=True)
def _parallel(
    positions: Any, wide_positions: Any, query: Any, query_stride: Any, key: Any, key_stride: Any,
    value: Any, value_stride: Any, cos_sin: Any, key_cache: Any, key_block: Any, value_cache: Any, value_block: Any,
    slots: Any, heads: Any, kv_heads: Any, dim: Any, half: Any, block_size: Any,
    tokens: Any, tag: Any, table_tag: Any, workers: Any,
) -> None:  # fmt: skip
    for w in prange(workers):
        turn_and_put(
            positions, wide_positions, query, query_stride, key, key_stride, value, value_stride,
            cos_sin, key_cache, key_block, value_cache, value_block, slots,
            heads, kv_heads, dim, half, block_size, tokens * w // workers, tokens * (w + 1) // workers, tag, table_tag,
        )  # fmt: skip


def _run(
    positions: Tensor | None,
    query: Tensor | None,
    key: Tensor,
    value: Tensor | None,
    cos_sin: Tensor | None,
    caches: tuple[Tensor, Tensor] | None,
    slots: Tensor | None,
) -> bool:
    """Carry out what is given; False, with nothing done, where a dtype or a stride does not fit."""
    tag = tag_of(key)
    tensors = [t for t in (query, key, value, *(caches or ())) if t is not None]
    if tag is None or not all(t.dtype == key.dtype and rows_of(t) for t in tensors):
        return False
    tokens, kv_heads, dim = key.shape
    if positions is not None and cos_sin is not None and query is not None:
        table_tag = tag_of(cos_sin)
        if table_tag is None or not cos_sin.is_contiguous() or positions.dtype not in (torch.int64, torch.int32):
            return False
        if not positions.is_contiguous():
            return False
        turn = (positions.data_ptr(), positions.dtype == torch.int64, query.data_ptr(), query.stride(0))
        table, half, heads = cos_sin.data_ptr(), cos_sin.shape[1] // 2, query.shape[1]
    else:
        table_tag, turn, table, half, heads = tag, (0, True, 0, 0), 0, 0, 0
    if caches is not None and slots is not None and value is not None:
        if slots.dtype != torch.int64 or not slots.is_contiguous():
            return False
        tokens = min(tokens, slots.shape[0])
        source = (value.data_ptr(), value.stride(0))
        target = (caches[0].data_ptr(), caches[0].stride(0), caches[1].data_ptr(), caches[1].stride(0), slots.data_ptr())
        block_size = caches[0].shape[2]
    else:
        source, target, block_size = (0, 0), (0, 0, 0, 0, 0), 1
    arguments = (*turn, key.data_ptr(), key.stride(0), *source, table, *target, heads, kv_heads, dim, half, block_size)
    workers = workers_for(tokens * (heads + 2 * kv_heads) * dim)
    if workers == 1:
        turn_and_put(*arguments, 0, tokens, tag, table_tag)
    else:
        _parallel(*arguments, tokens, tag, table_tag, workers)
    return True


def rotary_embedding(positions: Tensor, query: Tensor, key: Tensor, cos_sin: Tensor) -> None:
    """As `reference.rotary_embedding`; float32 and bfloat16 here, other dtypes and strides there."""
    if not _run(positions, query, key, None, cos_sin, None, None):
        reference_rotary_embedding(positions, query, key, cos_sin)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """As `reference.write_kv`; float32 and bfloat16 here, other dtypes and strides there."""
    if not _run(None, None, key, value, None, (key_cache, value_cache), slot_mapping):
        reference_write_kv(key, value, key_cache, value_cache, slot_mapping)


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
    """As `reference.rotary_write_kv`, in one pass over the tokens where the slots cover them all."""
    whole = slot_mapping.shape[0] == key.shape[0]
    if not whole or not _run(positions, query, key, value, cos_sin, (key_cache, value_cache), slot_mapping):
        rotary_embedding(positions, query, key, cos_sin)
        write_kv(key, value, key_cache, value_cache, slot_mapping)
