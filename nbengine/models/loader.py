"""From what a person calls a model to a local directory, and from there to config, tokenizer and weights.

Nothing here connects to anything for a catalog model that was pulled, a local directory or a GGUF file.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from nbengine_kernels import kernels_for

from nbengine import envs
from nbengine.config import ModelConfig
from nbengine.errors import ModelError
from nbengine.models.catalog import CATALOG, from_gguf, pull
from nbengine.models.decoder import DecoderModel, is_native
from nbengine.models.facts import ModelFacts
from nbengine.models.interface import PagedModel
from nbengine.models.native_config import read_native_config
from nbengine.models.tokenizer import read_plain_tokenizer
from nbengine.models.weights import open_weights

_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_SAMPLING_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # of generation_config.json
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# ------------------------------------------------------------------------------------------------------------- directory


def resolve(model: str, *, revision: str | None = None, trust_remote_code: bool = False, progress: bool = True) -> Path:
    """The local directory, in transformers layout, of a model given by name, path, GGUF file or Hub id.

    A catalog name is pulled if need be, a GGUF file converted into the cache, a Hub id downloaded (HF_HUB_OFFLINE and
    the Hub's other variables are honoured). Raises ModelError.
    """
    if model in CATALOG:
        return pull(model, progress=progress)
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} is no model directory in transformers layout: it has no config.json.")
        return path
    if path.suffix == ".gguf" or path.is_file():
        if not path.is_file():
            raise ModelError(f"There is no file {path}.")
        stat = path.stat()
        return _resolve_gguf(path.resolve(), stat.st_size, stat.st_mtime_ns, progress)
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return _resolve_hub(model, revision, trust_remote_code)
    raise ModelError(
        f"No model is called {model!r}, and no such directory or file is here. Named models: {', '.join(sorted(CATALOG))}. "
        "A directory, a .gguf file or a Hub id (owner/name) will do too."
    )


@functools.lru_cache(maxsize=8)
def _resolve_gguf(path: Path, size: int, modified_ns: int, progress: bool) -> Path:
    """Cached by size and time of change, so that one process hashes a large file once."""
    return from_gguf(path, progress=progress)


def _resolve_hub(model: str, revision: str | None, trust_remote_code: bool) -> Path:
    import huggingface_hub

    patterns = [*_HUB_FILES, "*.py"] if trust_remote_code else _HUB_FILES
    try:
        return Path(huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the Hub client raises its own, httpx's and the system's errors
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise ModelError(
            f"{model!r} is neither here nor could it be fetched from the Hub: {type(error).__name__}: {reason} "
            f"Named models that need no Hub: {', '.join(sorted(CATALOG))}."
        ) from error


# ------------------------------------------------------------------------------------------------- config and tokenizer


def read_config(path: Path, *, trust_remote_code: bool = False) -> Any:
    """The config of the language model in a local directory, without transformers where that gives the same."""
    return read_native_config(path) or load_config(path, trust_remote_code=trust_remote_code)


def load_config(path: Path, *, trust_remote_code: bool = False) -> Any:
    """The transformers config of the language model in a local directory. Raises ModelError."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:
        kind = _read_json(path / "config.json").get("model_type")
        raise ModelError(
            f"{path} holds a model of type {kind!r}, whose config cannot be read: {_first_line(error)}"
        ) from error
    return config.get_text_config(decoder=True)


def model_facts(config: ModelConfig) -> ModelFacts:
    """What an engine needs to know before it loads anything. Raises ModelError."""
    path = _directory(config)
    model_config = read_config(path, trust_remote_code=config.trust_remote_code)
    generation = _read_json(path / "generation_config.json")
    return ModelFacts(
        max_len=max_len_of(model_config),
        vocab_size=model_config.vocab_size,
        eos_token_ids=_eos_token_ids(path),
        sampling_defaults={name: generation[name] for name in _SAMPLING_NAMES if generation.get(name) is not None},
    )


def model_max_len(model: str) -> int:
    """The longest sequence that the model was made for, in tokens. Raises ModelError."""
    return max_len_of(read_config(resolve(model)))


def max_len_of(config: Any) -> int:
    """The longest sequence of a transformers config, in tokens. Raises ModelError if it does not say."""
    for name in _LENGTH_NAMES:
        length = getattr(config, name, None)
        if isinstance(length, int) and length > 0:
            return length
    raise ModelError(f"The config of this {config.model_type!r} model does not say how long a sequence may be.")


def load_tokenizer(config: ModelConfig) -> Any:
    """The model's tokenizer, chat template included, without a connection. Raises ModelError."""
    name = config.tokenizer or config.model
    path = resolve(
        name, revision=config.revision if name == config.model else None, trust_remote_code=config.trust_remote_code
    )
    load_full = functools.partial(_transformers_tokenizer, path, config.trust_remote_code)
    return read_plain_tokenizer(path, load_full) or load_full()


def _transformers_tokenizer(path: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=trust_remote_code, use_fast=True
        )
    except Exception as error:
        raise ModelError(
            f"The tokenizer in {path} cannot be loaded ({_first_line(error)}): give another with tokenizer=, or "
            "skip_tokenizer_init=True to work with token ids alone."
        ) from error


def _eos_token_ids(path: Path) -> list[int]:
    """The tokens that end an answer, the main one first: from generation_config.json, else config.json; may be empty."""
    for name in ("generation_config.json", "config.json"):
        found = _read_json(path / name).get("eos_token_id")
        if found is not None:
            return list(found) if isinstance(found, list) else [found]
    return []


def _directory(config: ModelConfig) -> Path:
    return resolve(config.model, revision=config.revision, trust_remote_code=config.trust_remote_code)


# --------------------------------------------------------------------------------------------------------------- weights


def choose_device(config: ModelConfig) -> torch.device:
    """The device for `config.device`. Raises ModelError for one that is not there."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError('device="cuda" was asked for, but this PyTorch sees no GPU: use device="cpu" or "auto".')
    return torch.device(config.device)


def choose_dtype(config: ModelConfig, device: torch.device, stored: Any) -> torch.dtype:
    """auto: float32 on cpu, the checkpoint's own on a GPU (bfloat16 if that is unknown). Raises ModelError."""
    if config.dtype != "auto":
        if config.dtype == "float16" and device.type == "cpu":
            raise ModelError('dtype="float16" is for GPUs; on a CPU use "float32" or "bfloat16".')
        return _DTYPES[config.dtype]
    if device.type == "cpu":
        return torch.float32
    return stored if stored in _DTYPES.values() else torch.bfloat16


def load_model(config: ModelConfig, *, max_positions: int) -> PagedModel:
    """Load the weights of a model onto its device, in its dtype.

    max_positions: the longest sequence that will be run, in tokens. Raises ModelError.
    """
    path = _directory(config)
    model_config = read_config(path, trust_remote_code=config.trust_remote_code)
    device = choose_device(config)
    dtype = choose_dtype(config, device, getattr(model_config, "dtype", None))
    kernels = kernels_for(device, dtype, force=envs.kernel_dialect())
    with torch.inference_mode():
        if is_native(model_config):
            with open_weights(path, device=device, dtype=dtype) as take:
                return DecoderModel(
                    model_config,
                    take,
                    kernels=kernels,
                    device=device,
                    dtype=dtype,
                    max_positions=max_positions,
                    quantization=config.quantization,
                )
        from nbengine.models.transformers_backend import TransformersModel

        if config.quantization:
            raise ModelError(
                f"quantization={config.quantization!r} serves models of Llama's shape; "
                f"this one is {model_config.model_type!r}."
            )
        return TransformersModel(
            path,
            model_config,
            kernels=kernels,
            device=device,
            dtype=dtype,
            max_positions=max_positions,
            trust_remote_code=config.trust_remote_code,
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
