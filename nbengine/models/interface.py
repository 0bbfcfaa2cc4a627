"""What the model runner and a model say to each other: one flat batch in, one row of logits per asked token out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class KVShape(NamedTuple):
    """What one layer keeps of one token: a key and a value of (num_kv_heads, head_dim) each."""

    num_kv_heads: int
    head_dim: int


class LayerCache(NamedTuple):
    """One layer's KV cache: key and value, each (num_blocks, num_kv_heads, block_size, head_dim)."""

    key: Tensor
    value: Tensor


@dataclass(slots=True)
class FlatBatch:
    """All tokens of one step, request after request: T tokens, R requests, S rows whose logits are asked for.

    Request r owns the tokens query_start_loc[r] … query_start_loc[r + 1]; they are the last ones of its seq_lens[r].
    """

    token_ids: Tensor  # (T,) int32
    positions: Tensor  # (T,) int32
    slot_mapping: Tensor  # (T,) int64: block * block_size + offset, where the token's key and value go
    query_start_loc: Tensor  # (R + 1,) int32
    seq_lens: Tensor  # (R,) int32, the step's tokens included
    block_tables: Tensor  # (R, max_blocks) int32
    logits_rows: Tensor  # (S,) int64, indices into T


class PagedModel(Protocol):
    """A causal language model whose keys and values lie in blocks that somebody else owns."""

    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    capturable: bool  # whether a forward pass depends on sizes alone, so that a CUDA graph can record it

    @property
    def kv_shapes(self) -> list[KVShape]:
        """One entry a layer, in the order of the caches that `forward` takes."""

    def forward(self, batch: FlatBatch, caches: list[LayerCache], *, num_layers: int | None = None) -> Tensor:
        """Run the batch; write its keys and values into `caches`.

        num_layers: only so many layers, to measure memory (a model may ignore it).
        Returns (S, vocab_size) logits, float32.
        """
