"""config.json of a model for the native path, read without transformers, whose import costs seconds.

Only files that leave nothing open are read here: transformers fills gaps from the defaults of each architecture, so a config
that lacks a field, or has one whose meaning needs interpretation, is left to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from nbengine.models.decoder import NATIVE_MODEL_TYPES

_NEEDED = {
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
}
_ALSO_NEEDED = {  # by model type
    "mistral": {"sliding_window"},
    "qwen2": {"use_sliding_window"},
    "qwen3": {"use_sliding_window", "head_dim"},
    "smollm3": {"layer_types", "no_rope_layers", "sliding_window"},
}
_OPTIONAL = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "head_dim": None,
}  # one default for all types
_LLAMA3_ROTARY = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_native_config(path: Path) -> SimpleNamespace | None:
    """The fields of a transformers config that the native path reads, under the same names; None: transformers is needed."""
    try:
        raw = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # transformers says what is wrong with it
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind not in NATIVE_MODEL_TYPES or "auto_map" in raw or "quantization_config" in raw:
        return None
    needed = _NEEDED | _ALSO_NEEDED.get(kind, set())
    rotary = _rotary(raw)
    dtype = _DTYPES.get(raw.get("dtype") or raw.get("torch_dtype") or "")
    if needed - raw.keys() or rotary is None or dtype is None:
        return None
    windowed = raw.get("use_sliding_window", True)
    if kind in ("qwen2", "qwen3") and windowed and "layer_types" not in raw:
        return None
    return SimpleNamespace(
        **{name: raw[name] for name in _NEEDED},
        **{name: raw.get(name, default) for name, default in _OPTIONAL.items()},
        model_type=kind,
        dtype=dtype,
        rope_parameters=rotary,
        sliding_window=raw.get("sliding_window") if windowed else None,
        layer_types=raw.get("layer_types"),
        no_rope_layers=raw.get("no_rope_layers"),
    )


def _rotary(raw: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters of rotary positions in today's spelling; None for kinds other than plain and Llama 3's."""
    found = raw.get("rope_parameters") or {**(raw.get("rope_scaling") or {}), "rope_theta": raw.get("rope_theta")}
    kind = found.get("rope_type") or ("default" if found.keys() <= {"rope_theta"} else None)
    if found.get("rope_theta") is None or "partial_rotary_factor" in {*found, *raw}:
        return None
    if kind == "default" or (kind == "llama3" and found.keys() >= _LLAMA3_ROTARY):
        return {**found, "rope_type": kind}
    return None
