"""config.json read by hand: exactly what transformers reads, or left to transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbengine.models.decoder import DecoderShape, is_native
from nbengine.models.loader import load_config
from nbengine.models.native_config import read_native_config
from tests.models.tiny import CONFIGS

_PLAIN = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_theta": 50000.0,
    "torch_dtype": "bfloat16",
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
HAND_READ: dict[str, dict[str, Any]] = {
    "llama of 2023": {"model_type": "llama", "rope_scaling": None, "pretraining_tp": 1},
    "llama 3.1": {"model_type": "llama", "rope_scaling": _LLAMA3, "head_dim": 16, "mlp_bias": True, "attention_bias": True},
    "mistral with a window": {"model_type": "mistral", "sliding_window": 11},
    "mistral without": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 7, "max_window_layers": 1},
    "a window that is switched off": {
        "model_type": "qwen2",
        "use_sliding_window": False,
        "sliding_window": 7,
        "layer_types": ["sliding_attention"] * 3,
    },
    "qwen3": {"model_type": "qwen3", "use_sliding_window": False, "sliding_window": None, "head_dim": 16},
}
LEFT_TO_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "a window over some layers": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 7},
    "yarn": {"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "an older spelling": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
    "quantised": {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}},
    "code of its own": {"model_type": "llama", "auto_map": {"AutoConfig": "configuration.MyConfig"}},
    "no dtype": {"model_type": "llama", "torch_dtype": None},
    "no model type": {},
    "gpt2": {"model_type": "gpt2"},
}


def _same(path: Path) -> None:
    """Everything that the native path reads."""
    ours, theirs = read_native_config(path), load_config(path)
    assert ours is not None
    assert DecoderShape.from_config(ours) == DecoderShape.from_config(theirs)
    assert is_native(ours) and is_native(theirs)
    for name in ("max_position_embeddings", "rope_parameters", "dtype", "vocab_size", "model_type", "hidden_act"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("name", HAND_READ)
def test_hand_read_configs_are_what_transformers_reads(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_PLAIN | HAND_READ[name]))
    _same(tmp_path)


@pytest.mark.parametrize("arch", [a for a in CONFIGS if a.startswith(("llama", "mistral", "qwen", "smollm3"))])
def test_configs_that_transformers_writes_are_read_by_hand(arch: str, tiny_model: Callable[[str], Path]) -> None:
    _same(tiny_model(arch))


@pytest.mark.parametrize("name", LEFT_TO_TRANSFORMERS)
def test_what_needs_interpreting_is_left_to_transformers(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_PLAIN | LEFT_TO_TRANSFORMERS[name]))
    assert read_native_config(tmp_path) is None


@pytest.mark.parametrize("field", ["rms_norm_eps", "tie_word_embeddings", "num_key_value_heads", "rope_theta"])
def test_a_gap_is_left_to_transformers(field: str, tmp_path: Path) -> None:
    config = _PLAIN | HAND_READ["llama of 2023"]
    (tmp_path / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name != field}))
    assert read_native_config(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_damaged_config_is_left_to_transformers(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert read_native_config(tmp_path) is None
