"""Tiny random models, made from a config and a seed, in transformers layout: one for each architecture that is promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 211
_LLAMA: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_GEMMA = _LLAMA | {"query_pre_attn_scalar": 16, "sliding_window": 9, "tie_word_embeddings": True}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama3_rope": (
        "LlamaConfig",
        _LLAMA
        | {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "smollm3": ("SmolLM3Config", _LLAMA | {"no_rope_layers": [1, 0, 1], "no_rope_layer_interval": 2}),
    "mistral": ("MistralConfig", _LLAMA | {"sliding_window": 11}),
    "qwen2": ("Qwen2Config", _LLAMA | {"tie_word_embeddings": True}),
    "qwen2_window": (
        "Qwen2Config",
        _LLAMA | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", _LLAMA),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCAB_SIZE,
            "n_positions": 512,
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "gemma2": ("Gemma2Config", _GEMMA | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
    "gemma3": (
        "Gemma3TextConfig",
        _GEMMA | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
}


def make_tiny_model(arch: str, path: Path, *, seed: int = 0) -> Path:
    """Write a random model of one of CONFIGS into `path` (float32 safetensors, no tokenizer); returns `path`.

    Weights are wide enough that the likeliest token varies, so that a greedy continuation means something.
    """
    import transformers

    class_name, options = CONFIGS[arch]
    config = getattr(transformers, class_name)(**options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name or ".ln_" in name:
                    weight.add_(0.2 * torch.randn_like(weight))
                else:
                    weight.copy_((0.8 / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.3) * torch.randn_like(weight))
    model.to(torch.float32).save_pretrained(path)
    return path


def reference_model(path: Path) -> Any:
    """The same model as transformers runs it: float32, its own attention."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path), dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


def reference_greedy(model: Any, prompt: list[int], max_tokens: int, *, eos_token_id: int | None = None) -> list[int]:
    """transformers' own greedy continuation of one prompt."""
    with torch.inference_mode():
        made = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=eos_token_id if eos_token_id is not None else -1,
            pad_token_id=0,
        )
    continuation: list[int] = made[0, len(prompt) :].tolist()
    return continuation


def reference_logprobs(model: Any, token_ids: list[int]) -> torch.Tensor:
    """(len(token_ids), V) log probabilities of the token after each position, float32."""
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids])).logits[0].float()
    return torch.log_softmax(logits, dim=-1)
