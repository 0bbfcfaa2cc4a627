"""What a model may be called, and one clear sentence for everything that it may not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nbengine.config import ModelConfig
from nbengine.errors import ModelError
from nbengine.models import loader
from nbengine.models.loader import load_config, load_model, load_tokenizer, model_facts, model_max_len, resolve
from nbengine.models.weights import checkpoint_files, open_weights
from tests.models.test_catalog import write_tiny_gguf
from tests.models.tiny import reference_greedy, reference_model
from tests.worker.rig import Rig, greedy, random_prompt

TinyModel = Callable[[str], Path]


def test_directories_and_gguf_files_are_found(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBENGINE_CACHE", str(tmp_path / "cache"))
    path = tiny_model("llama")
    assert resolve(str(path)) == path
    write_tiny_gguf(tmp_path / "m.gguf")
    converted = resolve(str(tmp_path / "m.gguf"), progress=False)
    assert (converted / "config.json").is_file()
    assert model_max_len(str(converted)) == 128
    assert load_tokenizer(ModelConfig(model=str(converted))).eos_token_id == 2


def test_a_converted_gguf_answers_as_transformers_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBENGINE_CACHE", str(tmp_path / "cache"))
    write_tiny_gguf(tmp_path / "m.gguf")
    path = resolve(str(tmp_path / "m.gguf"), progress=False)
    rig = Rig(path)
    prompt = random_prompt(1, 20, rig.model.vocab_size)
    rig.add("a", prompt, greedy(10))
    assert rig.generate()["a"] == reference_greedy(reference_model(path), prompt, 10)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no-such-model", "smollm2-135m"),
        ("./nowhere", "no such directory"),
        ("~/nowhere/at/all", "no such directory"),
        ("missing.gguf", "no file"),
    ],
)
def test_a_name_that_is_nothing_lists_what_would_do(name: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        resolve(name)


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        resolve(str(tmp_path))


def test_offline_is_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"'nobody/nothing' is neither here.*smollm2-135m"):
        resolve("nobody/nothing")


def test_a_local_model_needs_no_connection(tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for arch in ("qwen3", "gpt2"):
        load_model(ModelConfig(model=str(tiny_model(arch))), max_positions=64)
    monkeypatch.setenv("NBENGINE_CACHE", str(tmp_path / "cache"))
    write_tiny_gguf(tmp_path / "m.gguf")
    config = ModelConfig(model=str(tmp_path / "m.gguf"))
    assert model_facts(config).max_len == 128
    assert load_tokenizer(config).decode([1]) == "<|im_start|>"


def test_facts_come_from_the_files(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "m"
    shutil.copytree(tiny_model("llama"), path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 2], "temperature": 0.6, "top_k": 5}))
    facts = model_facts(ModelConfig(model=str(path)))
    assert (facts.max_len, facts.vocab_size, facts.eos_token_ids) == (512, 211, [9, 2])
    assert facts.sampling_defaults == {"temperature": 0.6, "top_k": 5}
    (path / "generation_config.json").unlink()
    assert model_facts(ModelConfig(model=str(path))).eos_token_ids == [2]


def test_unknown_architectures_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "frobnicator"}))
    with pytest.raises(ModelError, match="frobnicator"):
        load_config(tmp_path)


def test_models_that_the_paged_cache_cannot_serve_are_refused(tmp_path: Path) -> None:
    import transformers

    mamba = transformers.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4)
    transformers.MambaForCausalLM(mamba).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="mamba"):
        load_model(ModelConfig(model=str(tmp_path)), max_positions=64)


def test_models_whose_positions_depend_on_the_batch_are_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="max_model_len to at most 32"):
        load_model(ModelConfig(model=str(tmp_path)), max_positions=64)
    load_model(ModelConfig(model=str(tmp_path)), max_positions=32)


def test_missing_and_damaged_weights_are_named(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "m"
    shutil.copytree(tiny_model("llama"), path)
    weights = path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="damaged"):
        load_model(ModelConfig(model=str(path)), max_positions=64)
    weights.unlink()
    with pytest.raises(ModelError, match="safetensors"):
        load_model(ModelConfig(model=str(path)), max_positions=64)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x-1.safetensors"}}))
    with pytest.raises(ModelError, match=r"x-1\.safetensors"):
        checkpoint_files(path)


def test_shards_are_read_and_a_missing_tensor_is_named(tiny_model: TinyModel, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(tiny_model("qwen2")))
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(checkpoint_files(tmp_path)) > 1
    with open_weights(tmp_path, device=torch.device("cpu"), dtype=torch.bfloat16) as take:
        assert take("model.norm.weight").dtype == torch.bfloat16
        with pytest.raises(ModelError, match=r"'model\.nothing'"):
            take("model.nothing")
    rig = Rig(tmp_path)
    rig.add("a", [5, 6, 7], greedy(5))
    assert rig.generate()["a"] == reference_greedy(model.eval(), [5, 6, 7], 5)


def test_dtypes_and_devices() -> None:
    cpu = torch.device("cpu")
    config = ModelConfig()
    assert loader.choose_dtype(config, cpu, torch.bfloat16) is torch.float32
    assert loader.choose_dtype(config, torch.device("cuda"), torch.float16) is torch.float16
    assert loader.choose_dtype(config, torch.device("cuda"), None) is torch.bfloat16
    assert loader.choose_dtype(ModelConfig(dtype="bfloat16"), cpu, None) is torch.bfloat16
    with pytest.raises(ModelError, match="float16"):
        loader.choose_dtype(ModelConfig(dtype="float16"), cpu, None)
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="GPU"):
            loader.choose_device(ModelConfig(device="cuda"))


def test_quantization_is_for_the_native_path(tiny_model: TinyModel) -> None:
    with pytest.raises(ModelError, match="int8"):
        load_model(ModelConfig(model=str(tiny_model("gpt2")), quantization="int8"), max_positions=64)
