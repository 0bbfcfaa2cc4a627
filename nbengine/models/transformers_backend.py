"""Any other causal language model: transformers runs it, and its attention calls come here, over the paged KV cache.

transformers lets an attention implementation be registered by name and calls it in every layer. Ours writes the step's keys
and values into their slots and attends over the blocks, so one flat batch serves all requests at once. What the model does
to its attention (windows, soft caps, scales) comes with each call; what this cache cannot express is refused on loading,
after one small probing pass, rather than answered wrongly.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from nbengine_kernels import Kernels
from torch import Tensor

from nbengine.errors import ModelError
from nbengine.models.interface import FlatBatch, KVShape, LayerCache

ATTENTION_NAME = "nbengine_paged"
_CONTEXT = "_nbengine_context"  # attribute of every module: how an attention call finds the step that it belongs to
_UNKNOWN_TERMS = ("s_aux", "position_bias", "alibi", "attention_bias", "head_mask")
_PLAIN_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
_LENGTH_DEPENDENT_ROTARY = frozenset({"dynamic", "longrope"})


@dataclass(slots=True)
class _Call:
    """One layer's attention as the probing pass saw it."""

    shape: KVShape
    value_dim: int
    window: int
    causal: bool
    unknown: list[str]


@dataclass(slots=True)
class _Context:
    """The step under way, shared by all modules of one model. Layers are counted in the order of their calls."""

    kernels: Kernels
    batch: FlatBatch | None = None
    caches: list[LayerCache] = field(default_factory=list)
    calls: list[_Call] | None = None  # not None: probing
    next_layer: int = 0


class TransformersModel:
    """A transformers model over the paged cache. Satisfies PagedModel."""

    capturable = False  # what its modules do in Python is theirs to know

    def __init__(
        self,
        path: Path,
        config: Any,
        *,
        kernels: Kernels,
        device: torch.device,
        dtype: torch.dtype,
        max_positions: int,
        trust_remote_code: bool = False,
    ) -> None:
        """Load the model and probe its attention. Raises ModelError if the paged cache cannot serve it."""
        _check_rotary(config, max_positions)
        self.device, self.dtype, self.vocab_size = device, dtype, config.vocab_size
        self._context = _Context(kernels)
        self._model = _load(path, config, dtype, trust_remote_code).to(device).eval()
        for module in self._model.modules():
            setattr(module, _CONTEXT, self._context)
        parameters = inspect.signature(self._model.forward).parameters
        if "position_ids" not in parameters:
            raise ModelError(f"{config.model_type!r} models do not take positions, which a flat batch of requests needs.")
        self._keeps_rows = "logits_to_keep" in parameters
        calls = self._probe()
        _check_calls(config, calls)
        self._kv_shapes = [call.shape for call in calls]

    @property
    def kv_shapes(self) -> list[KVShape]:
        return self._kv_shapes

    def forward(self, batch: FlatBatch, caches: list[LayerCache], *, num_layers: int | None = None) -> Tensor:
        """See PagedModel.forward; num_layers is ignored."""
        context = self._context
        context.batch, context.caches, context.next_layer = batch, caches, 0
        try:
            return self._run(batch.token_ids, batch.positions, batch.logits_rows)
        finally:
            context.batch, context.caches = None, []

    def _run(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """(T,), (T,), (S,) -> (S, V)."""
        keep = {"logits_to_keep": rows} if self._keeps_rows else {}
        made = self._model(
            input_ids=token_ids.long()[None], position_ids=positions.long()[None], use_cache=False, return_dict=True, **keep
        )
        logits: Tensor = made.logits[0]
        return (logits if self._keeps_rows else logits[rows]).float()

    def _probe(self) -> list[_Call]:
        """What each layer's attention looks like, from one pass over two tokens that attends to nothing."""
        context = self._context
        context.calls, context.next_layer = [], 0
        tokens = torch.zeros(2, dtype=torch.int32, device=self.device)
        try:
            self._run(tokens, torch.arange(2, device=self.device), torch.ones(1, dtype=torch.int64, device=self.device))
            return context.calls
        except Exception as error:
            kind = self._model.config.model_type
            raise ModelError(
                f"{kind!r} models cannot run over the paged KV cache: {type(error).__name__}: {error}"
            ) from error
        finally:
            context.calls = None


def _paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface. query: (1, H, T, D), key and value: (1, Hkv, T, D). Returns (1, T, H, D)."""
    context: _Context = getattr(module, _CONTEXT)
    if context.calls is not None:
        context.calls.append(_describe(module, key, value, sliding_window, rest))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    batch, cache = context.batch, context.caches[context.next_layer]
    assert batch is not None
    context.next_layer += 1
    query, key, value = (part[0].transpose(0, 1).to(cache.key.dtype).contiguous() for part in (query, key, value))
    context.kernels.write_kv(key, value, cache.key, cache.value, batch.slot_mapping)
    attended = context.kernels.paged_attention(
        query,  # (T, H, D)
        cache.key,
        cache.value,
        batch.block_tables,
        batch.query_start_loc,
        batch.seq_lens,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        sliding_window=sliding_window or 0,
        soft_cap=softcap or 0.0,
    )
    return attended[None], None


def _describe(module: torch.nn.Module, key: Tensor, value: Tensor, window: int | None, rest: dict[str, Any]) -> _Call:
    causal = rest.get("is_causal")
    return _Call(
        shape=KVShape(key.shape[1], key.shape[3]),
        value_dim=value.shape[3],
        window=window or 0,
        causal=bool(getattr(module, "is_causal", True) if causal is None else causal),
        unknown=[name for name in _UNKNOWN_TERMS if rest.get(name) is not None],
    )


def _load(path: Path, config: Any, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION_NAME, _paged_attention)
    try:
        return AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise ModelError(
            f"{path} holds a {config.model_type!r} model, which cannot be loaded as a causal LM: {reason}"
        ) from error


def _check_rotary(config: Any, max_positions: int) -> None:
    """Refuse positions that depend on the longest sequence of the batch: a request's output would depend on its company."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for part in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        kind = part.get("rope_type")
        original = int(part.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None) or 0)
        if kind in _LENGTH_DEPENDENT_ROTARY and max_positions > original:
            raise ModelError(
                f"This model's rotary positions ({kind}) change with the longest sequence of a batch beyond {original} "
                f"tokens, so answers would depend on what else runs: set max_model_len to at most {original}."
            )


def _check_calls(config: Any, calls: list[_Call]) -> None:
    """Refuse what the paged cache cannot express."""
    kind, layers = config.model_type, config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or []
    window = getattr(config, "sliding_window", None) or 0
    reason = ""
    if other := sorted(set(kinds) - _PLAIN_LAYERS):
        reason = f"it has {', '.join(other)} layers"
    elif len(calls) != layers:
        reason = f"{len(calls)} of its {layers} layers use transformers' attention interface"
    elif any(not call.causal for call in calls):
        reason = "its attention is not causal"
    elif unknown := sorted({name for call in calls for name in call.unknown}):
        reason = f"its attention has terms beyond query and key ({', '.join(unknown)})"
    elif any(call.value_dim != call.shape.head_dim for call in calls):
        reason = "its keys and values have different sizes"
    elif any(call.window != (window if name == "sliding_attention" else 0) for call, name in zip(calls, kinds)):
        reason = "its attention windows are not those of its config"
    if reason:
        raise ModelError(f"{kind!r} models cannot run over the paged KV cache: {reason}.")
