"""From a GGUF file to a directory that transformers loads as it is: safetensors, config, tokenizer, chat template.

Models of Llama's shape are converted here with the gguf package's own dequantisation, in float32, so that nothing is lost.
Any other architecture goes through transformers' own GGUF reader.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm.auto import tqdm

from nbengine.errors import ModelError

_NATIVE = {  # GGUF architecture -> (transformers model_type, class, whether q and k rows are interleaved)
    "llama": ("llama", "LlamaForCausalLM", True),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", True),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", False),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", False),
}
_LAYER_NAMES = {  # GGUF name within a block -> transformers name within a layer
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL_TOKEN = 3  # tokenizer.ggml.token_type: normal 1, unknown 2, control 3, user defined 4
_USER_TOKEN = 4


def convert_gguf(path: Path, target: Path, *, progress: bool = True) -> None:
    """Write everything that transformers and nbengine need into the existing, empty directory `target`.

    Raises ModelError for a file that is no GGUF, or whose architecture or tokenizer nobody here can read.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(str(path))
    except Exception as error:  # the reader raises ValueError, IndexError or numpy's errors on a foreign or cut-off file
        raise ModelError(f"{path} is not a GGUF file that can be read: {error}") from error
    fields = _Fields(reader)
    architecture = fields.text("general.architecture")
    if architecture not in _NATIVE:
        _convert_with_transformers(path, target, architecture)
        return
    config = _config(reader, fields, architecture)
    tensors = _tensors(reader, config, interleaved=_NATIVE[architecture][2], progress=progress)
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", _generation_config(config))
    _save_tokenizer(fields, path, target, config)
    _save_tensors(tensors, target)


class _Fields:
    """The key-value pairs of a GGUF file, with a clear error for one that is missing."""

    def __init__(self, reader: Any) -> None:
        self._fields = reader.fields

    def get(self, name: str, default: Any = None) -> Any:
        field = self._fields.get(name)
        return default if field is None else field.contents()

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ModelError(f"The GGUF file has no {name!r}: it is incomplete, or not a language model.")
        return value

    def text(self, name: str) -> str:
        return str(self.need(name))


# ---------------------------------------------------------------------------------------------------------------- config


def _config(reader: Any, fields: _Fields, architecture: str) -> dict[str, Any]:
    model_type, model_class, _ = _NATIVE[architecture]
    names = {tensor.name for tensor in reader.tensors}
    heads, hidden = fields.need(f"{architecture}.attention.head_count"), fields.need(f"{architecture}.embedding_length")
    config: dict[str, Any] = {
        "architectures": [model_class],
        "model_type": model_type,
        "vocab_size": len(fields.need("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": fields.need(f"{architecture}.feed_forward_length"),
        "num_hidden_layers": fields.need(f"{architecture}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get(f"{architecture}.attention.head_count_kv", heads),
        "head_dim": fields.get(f"{architecture}.attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": fields.need(f"{architecture}.context_length"),
        "rms_norm_eps": fields.need(f"{architecture}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope_parameters(reader, fields, architecture),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }
    if unknown := _unsupported(names):
        raise ModelError(f"The GGUF file holds tensors that {architecture!r} models here do not have: {unknown}.")
    return config


def _unsupported(names: set[str]) -> list[str]:
    def known(name: str) -> bool:
        parts = name.split(".")
        return parts[0] in _TOP_NAMES or name == "rope_freqs.weight" or (parts[0] == "blk" and parts[2] in _LAYER_NAMES)

    return sorted(name for name in names if not known(name))[:4]


def _rope_parameters(reader: Any, fields: _Fields, architecture: str) -> dict[str, Any]:
    base = float(fields.get(f"{architecture}.rope.freq_base", 10000.0))
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    kind, factor = fields.get(f"{architecture}.rope.scaling.type"), fields.get(f"{architecture}.rope.scaling.factor")
    if kind in ("linear", "yarn") and factor:
        parameters |= {"rope_type": kind, "factor": float(factor)}
        if original := fields.get(f"{architecture}.rope.scaling.original_context_length"):
            parameters["original_max_position_embeddings"] = original
    factors = [tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
    if factors:
        parameters |= _llama3_scaling(np.asarray(factors[0].data, np.float64), base)
    return parameters


def _llama3_scaling(factors: NDArray[np.float64], base: float) -> dict[str, Any]:
    """The parameters behind a table of frequency divisors (D / 2,), as Llama 3.1 and 3.2 files carry it."""
    from nbengine_kernels import rotary_frequencies

    guess = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    dim = 2 * len(factors)
    plain, _ = rotary_frequencies(dim, base=base)
    stretched, _ = rotary_frequencies(dim, base=base, scaling=guess)
    if not np.allclose((plain / stretched).numpy(), factors, rtol=1e-3):
        raise ModelError("The GGUF file's table of rotary frequencies is not Llama 3's: these positions are not supported.")
    return guess


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    wanted = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: config[name] for name in wanted if config[name] is not None}


# --------------------------------------------------------------------------------------------------------------- tensors


def _tensors(reader: Any, config: dict[str, Any], *, interleaved: bool, progress: bool) -> dict[str, torch.Tensor]:
    """Every tensor under its transformers name, float32."""
    import gguf

    tensors: dict[str, torch.Tensor] = {}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in tqdm(reader.tensors, desc="converting weights", unit="tensor", disable=not progress):
        if tensor.name == "rope_freqs.weight":
            continue
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{tensor.name} is stored as {tensor.tensor_type.name}, which cannot be read: {error}"
            ) from error
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if interleaved and parts[2] in heads:
                values = _half_rotated(values, heads[parts[2]])
            name = f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
        else:
            name = f"{_TOP_NAMES[parts[0]]}.{parts[1]}"
        tensors[name] = torch.from_numpy(np.array(values, np.float32, order="C"))
    return tensors


def _half_rotated(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows that llama.cpp keeps as pairs (0, 1), (2, 3) … of each head, back to pairs (i, i + D / 2)."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _save_tensors(tensors: dict[str, torch.Tensor], target: Path) -> None:
    from safetensors.torch import save_file

    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


# -------------------------------------------------------------------------------------------------------------- tokenizer


def _save_tokenizer(fields: _Fields, path: Path, target: Path, config: dict[str, Any]) -> None:
    if fields.get("tokenizer.ggml.model") == "gpt2" and fields.get("tokenizer.ggml.pre") == "smollm":
        _save_smollm_tokenizer(fields, target, config)
        return
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(target)
    except Exception as error:
        raise ModelError(f"The tokenizer in {path} cannot be read: {error}") from error


def _save_smollm_tokenizer(fields: _Fields, target: Path, config: dict[str, Any]) -> None:
    """tokenizer.json, its config and the chat template. transformers' own reading of the file leaves the digit rule out."""
    tokens: list[str] = fields.need("tokenizer.ggml.tokens")
    kinds = fields.need("tokenizer.ggml.token_type")
    _digits_then_bytes(tokens, fields.need("tokenizer.ggml.merges"), kinds).save(str(target / "tokenizer.json"))
    ids = {name: config[f"{name}_token_id"] for name in ("bos", "eos", "pad")}
    ids["unk"] = fields.get("tokenizer.ggml.unknown_token_id")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    settings |= {f"{name}_token": tokens[token] for name, token in ids.items() if token is not None}
    _write_json(target / "tokenizer_config.json", settings)
    if template := fields.get("tokenizer.chat_template"):
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")


def _digits_then_bytes(tokens: list[str], merges: list[str], kinds: list[int]) -> Tokenizer:
    """SmolLM's rule: every digit alone (of any script), then bytes, then byte-pair merges."""
    pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    marked = [(token, kind) for token, kind in zip(tokens, kinds) if kind in (_CONTROL_TOKEN, _USER_TOKEN)]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in marked if k == _CONTROL_TOKEN])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in marked if k == _USER_TOKEN])
    return tokenizer


# -------------------------------------------------------------------------------------------------- other architectures


def _convert_with_transformers(path: Path, target: Path, architecture: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, name = str(path.parent), path.name
    try:
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    except Exception as error:
        known = ", ".join(sorted(_NATIVE))
        raise ModelError(
            f"The GGUF architecture {architecture!r} is not read here (known: {known}), and transformers could not "
            f"either: {error}"
        ) from error
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
