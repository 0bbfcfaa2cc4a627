"""What a decoder of Llama's shape is made of, in the words that the model and a dialect share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class LinearOperator(Protocol):
    """What `PackedLinear(weight, bias, quantization=...)` gives: `y = x @ weight.T + bias`."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor: ...

    def take_rows(self, indices: Tensor) -> Tensor:
        """indices: (T,) int32. Returns rows (T, I) of the weight: the embedding where the head is tied to it."""


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """The numbers that all layers have in common."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    scale: float  # of query times key


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights. C: hidden size; H, Hkv: query and KV heads; D: head size; F: the MLP's width."""

    input_norm: Tensor  # (C,)
    post_norm: Tensor  # (C,)
    qkv: LinearOperator  # (C) -> ((H + 2 Hkv) D)
    output: LinearOperator  # (H D) -> (C)
    gate_up: LinearOperator  # (C) -> (2 F)
    down: LinearOperator  # (F) -> (C)
    window: int  # tokens that a query sees, itself included; 0 = all
    rotary: bool
    query_norm: Tensor | None = None  # (D,)
    key_norm: Tensor | None = None  # (D,)


class PagedBatch(Protocol):
    """T tokens of R requests, one request after another, S of whose rows are wanted."""

    positions: Tensor  # (T,) int32
    slot_mapping: Tensor  # (T,) int64, -1 = write nothing
    query_start_loc: Tensor  # (R + 1,) int32
    seq_lens: Tensor  # (R,) int32
    block_tables: Tensor  # (R, blocks) int32
    logits_rows: Tensor  # (S,) int64


class FusedDecoder(Protocol):
    """All layers and the head in one piece."""

    def forward(
        self, embedded: Tensor, batch: PagedBatch, caches: Sequence[tuple[Tensor, Tensor]], num_layers: int | None = None
    ) -> Tensor:
        """embedded: (T, C), overwritten. caches: a key and a value cache a layer. Returns (S, V) float32 logits."""


def not_fused(
    layers: Sequence[DecoderLayer], sizes: DecoderSizes, cos_sin: Tensor, final_norm: Tensor, head: LinearOperator
) -> FusedDecoder | None:
    """What a dialect answers that has no such form: the model calls its parts one by one."""
    return None
