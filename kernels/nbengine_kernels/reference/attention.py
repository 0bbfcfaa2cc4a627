"""Attention over a paged KV cache."""

import torch
from torch import Tensor


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of a ragged batch, prefill and decode mixed, over keys and values that lie in blocks.

    Request r owns the query rows `query_start_loc[r]:query_start_loc[r + 1]`, the last ones of its sequence: row j of
    its n sits at position p = seq_lens[r] - n + j and sees keys 0..p, or p - sliding_window + 1..p. The cache must
    already hold the step's own keys and values. A request may have no query rows (a padded batch). Query head h reads
    KV head h // (H / Hkv).

    Args:
        query: (T, H, D); rows may be strided, a row's (H, D) contiguous.
        key_cache, value_cache: (N, Hkv, block_size, D), same dtype as query; contiguous but for the first dimension
            (two halves of one tensor are fine).
        block_tables: (R, max_blocks) int32: request r's position p lies in block `block_tables[r, p // block_size]`.
        query_start_loc: (R + 1,) int32, ascending from 0.
        seq_lens: (R,) int32: keys of each request, the step's own included.
        scale: factor on query . key.
        sliding_window: 0 for none, else how many keys a query sees, itself included.
        soft_cap: 0 for none, else scores become soft_cap * tanh(score / soft_cap).
        out: (T, H, D) contiguous, to write into. Rows at or beyond query_start_loc[R] are left as they are.

    Returns:
        (T, H, D) in the query's dtype. Scores, softmax and sums are float32.

    Source: attention as in Vaswani et al. 2017, grouped queries as in Ainslie et al. 2023, blocks as in Kwon et al. 2023
    (PagedAttention); window as in Mistral 7B, soft cap as in Gemma 2.
    """
    if out is None:
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    group = query.shape[1] // key_cache.shape[1]
    block_size = key_cache.shape[2]
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for r, length in enumerate(lengths):
        begin, end = starts[r], starts[r + 1]
        if begin == end:
            continue
        blocks = block_tables[r, : -(-length // block_size)].long()
        keys = _gather(key_cache, blocks, length).repeat_interleave(group, dim=1)  # (S, H, D)
        values = _gather(value_cache, blocks, length).repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query[begin:end].float(), keys) * scale
        if soft_cap > 0.0:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        key_position = torch.arange(length, device=query.device)
        position = torch.arange(length - (end - begin), length, device=query.device)[:, None]
        visible = key_position <= position
        if sliding_window > 0:
            visible &= key_position > position - sliding_window
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)
    return out


def _gather(cache: Tensor, blocks: Tensor, length: int) -> Tensor:
    """The first `length` rows of a request, out of its blocks: (length, Hkv, D) float32."""
    rows = cache[blocks].transpose(1, 2).reshape(-1, cache.shape[1], cache.shape[3])
    return rows[:length].float()
