"""The native fast path: every decoder of Llama's shape, over the paged KV cache.

Llama, SmolLM2, SmolLM3, Mistral, Qwen2 and Qwen3 differ in a few switches (biases, query/key norms, windows, layers
without rotary positions) that `DecoderShape` reads off the transformers config. Query, key and value are one matrix here,
gate and up another; only rows that sample reach the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from nbengine_kernels import DecoderLayer, DecoderSizes, Kernels, LinearOperator, build_rotary_table
from nbengine_kernels.pages import give_back_heap
from torch import Tensor

from nbengine.errors import ModelError
from nbengine.models.interface import FlatBatch, KVShape, LayerCache

NATIVE_MODEL_TYPES = frozenset({"llama", "smollm3", "mistral", "qwen2", "qwen3"})
_ROTARY_KINDS = frozenset({"default", "linear", "llama3", "yarn"})

TakeWeight = Callable[[str], Tensor]
"""Gives a checkpoint tensor by its transformers name, in the model's dtype; raises ModelError if it is not there."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes and switches of one model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    tied_head: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]  # tokens a query sees in each layer, itself included; 0 = all
    rotary: tuple[bool, ...]  # whether the layer turns its queries and keys

    @classmethod
    def from_config(cls, config: Any) -> DecoderShape:
        """Read a transformers config of one of NATIVE_MODEL_TYPES."""
        kind, layers = config.model_type, config.num_hidden_layers
        bias = bool(getattr(config, "attention_bias", False))
        return cls(
            num_layers=layers,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocab_size=config.vocab_size,
            norm_eps=config.rms_norm_eps,
            tied_head=bool(config.tie_word_embeddings),
            qkv_bias=kind == "qwen2" or (bias and kind != "mistral"),
            output_bias=bias and kind not in ("mistral", "qwen2"),
            mlp_bias=bool(getattr(config, "mlp_bias", False)) and kind in ("llama", "smollm3"),
            qk_norm=kind == "qwen3",
            windows=_windows(config),
            rotary=tuple(bool(on) for on in (getattr(config, "no_rope_layers", None) or [1] * layers)),
        )


def is_native(config: Any) -> bool:
    """Whether the fast path runs this config; if not, the transformers backend may."""
    parameters = getattr(config, "rope_parameters", None) or {}
    plain_rotary = parameters.get("rope_type", "default") in _ROTARY_KINDS
    plain_weights = getattr(config, "quantization_config", None) is None  # others are more than their tensors
    plain_mlp = getattr(config, "hidden_act", "silu") == "silu"
    return config.model_type in NATIVE_MODEL_TYPES and plain_rotary and plain_weights and plain_mlp


def _windows(config: Any) -> tuple[int, ...]:
    layers: int = config.num_hidden_layers
    window: int = getattr(config, "sliding_window", None) or 0
    if config.model_type == "mistral":
        return (window,) * layers
    kinds = getattr(config, "layer_types", None)
    if config.model_type == "llama" or not kinds or not window:
        return (0,) * layers
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


class DecoderModel:
    """Weights in the form that the kernels like best, and the forward pass. Satisfies PagedModel."""

    capturable = True

    def __init__(
        self,
        config: Any,
        take: TakeWeight,
        *,
        kernels: Kernels,
        device: torch.device,
        dtype: torch.dtype,
        max_positions: int,
        quantization: Any = None,
    ) -> None:
        """Pull every weight through `take`, layer by layer, so that at most one layer exists twice at a time.

        max_positions: rows of the rotary table, the longest sequence that will be run.
        """
        self.shape = shape = DecoderShape.from_config(config)
        self.kernels, self.device, self.dtype = kernels, device, dtype
        self.vocab_size = shape.vocab_size
        self._scale = shape.head_dim**-0.5
        self._quantization = quantization
        # the largest matrices first: while one is packed it exists twice, and so not on top of all the others
        # 8 bits in either form: 4 would tell in every logit, and so in every embedded token where the head is tied
        self._head = kernels.PackedLinear(
            take("model.embed_tokens.weight" if shape.tied_head else "lm_head.weight"),
            quantization="int8" if quantization else None,
        )
        if shape.tied_head:
            self._embed = self._head.take_rows
        else:
            self._embed = partial(F.embedding, weight=take("model.embed_tokens.weight"))  # (V, C)
        self._cos_sin = _rotary_table(config, shape, max_positions, device)
        self._layers = []
        for index in range(shape.num_layers):
            self._layers.append(self._make_layer(take, index))
            give_back_heap()  # what packing took in between: the allocator would keep as much again as the weights take
        self._final_norm = take("model.norm.weight")
        sizes = DecoderSizes(shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.norm_eps, self._scale)
        self._fused = kernels.fuse_decoder(self._layers, sizes, self._cos_sin, self._final_norm, self._head)

    @property
    def kv_shapes(self) -> list[KVShape]:
        return [KVShape(self.shape.num_kv_heads, self.shape.head_dim)] * self.shape.num_layers

    def forward(self, batch: FlatBatch, caches: list[LayerCache], *, num_layers: int | None = None) -> Tensor:
        """See PagedModel.forward."""
        kernels, eps = self.kernels, self.shape.norm_eps
        residual = self._embed(batch.token_ids)  # (T, C), added to in place
        if self._fused is not None:
            return self._fused.forward(residual, batch, caches, num_layers)
        delta: Tensor | None = None  # (T, C), what the last block adds; each norm may overwrite it
        for layer, cache in zip(self._layers[:num_layers], caches):
            if delta is None:
                x = kernels.rms_norm(residual, layer.input_norm, eps)
            else:
                x, _ = kernels.rms_norm(delta, layer.input_norm, eps, residual, out=delta, residual_out=residual)
            delta = layer.output(self._attend(layer, cache, batch, x))
            x, _ = kernels.rms_norm(delta, layer.post_norm, eps, residual, out=delta, residual_out=residual)
            delta = layer.down(kernels.silu_and_mul(layer.gate_up(x)))
        assert delta is not None
        rows = batch.logits_rows
        x, _ = kernels.rms_norm(delta[rows], self._final_norm, eps, residual[rows])  # (S, C)
        return self._head(x).float()  # (S, V)

    def _attend(self, layer: DecoderLayer, cache: LayerCache, batch: FlatBatch, x: Tensor) -> Tensor:
        """x: (T, C). Returns (T, H D)."""
        shape, kernels = self.shape, self.kernels
        tokens, heads, kv_heads, dim = x.shape[0], shape.num_heads, shape.num_kv_heads, shape.head_dim
        qkv = layer.qkv(x).view(tokens, heads + 2 * kv_heads, dim)
        query, key, value = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = kernels.rms_norm(query.reshape(-1, dim), layer.query_norm, shape.norm_eps).view(tokens, heads, dim)
            key = kernels.rms_norm(key.reshape(-1, dim), layer.key_norm, shape.norm_eps).view(tokens, kv_heads, dim)
        place = (cache.key, cache.value, batch.slot_mapping)
        if layer.rotary:
            kernels.rotary_write_kv(batch.positions, query, key, value, self._cos_sin, *place)
        else:
            kernels.write_kv(key, value, *place)
        attended = kernels.paged_attention(
            query,
            cache.key,
            cache.value,
            batch.block_tables,
            batch.query_start_loc,
            batch.seq_lens,
            scale=self._scale,
            sliding_window=layer.window,
        )
        return attended.view(tokens, heads * dim)

    def _make_layer(self, take: TakeWeight, index: int) -> DecoderLayer:
        shape, prefix = self.shape, f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        return DecoderLayer(
            input_norm=take(prefix + "input_layernorm.weight"),
            post_norm=take(prefix + "post_attention_layernorm.weight"),
            qkv=self._fuse(take, [attention + name for name in ("q_proj", "k_proj", "v_proj")], shape.qkv_bias),
            output=self._fuse(take, [attention + "o_proj"], shape.output_bias),
            gate_up=self._fuse(take, [mlp + "gate_proj", mlp + "up_proj"], shape.mlp_bias),
            down=self._fuse(take, [mlp + "down_proj"], shape.mlp_bias),
            window=shape.windows[index],
            rotary=shape.rotary[index],
            query_norm=take(attention + "q_norm.weight") if shape.qk_norm else None,
            key_norm=take(attention + "k_norm.weight") if shape.qk_norm else None,
        )

    def _fuse(self, take: TakeWeight, names: list[str], bias: bool) -> LinearOperator:
        """One operator for matrices that read the same input, their outputs side by side: a copy in any case."""
        weight = torch.cat([take(f"{name}.weight") for name in names])
        biases = torch.cat([take(f"{name}.bias") for name in names]) if bias else None
        return self.kernels.PackedLinear(weight, biases, quantization=self._quantization)


def _rotary_table(config: Any, shape: DecoderShape, max_positions: int, device: torch.device) -> Tensor:
    """(max_positions, rotary_dim) float32 cosines and sines."""
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    rotary_dim = int(shape.head_dim * parameters.get("partial_rotary_factor", 1.0))
    try:
        return build_rotary_table(
            rotary_dim,
            max_positions,
            base=float(parameters.get("rope_theta", 10000.0)),
            scaling=parameters,
            max_position_embeddings=config.max_position_embeddings,
            device=device,
        )
    except ValueError as error:
        raise ModelError(f"The model's rotary positions cannot be set up: {error}") from error
