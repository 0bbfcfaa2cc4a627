"""The decoder in one call gives what its parts give when they are called one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nbengine_kernels.cpu import stack
from nbengine_kernels.cpu.stack import DecoderStack

from nbengine.config import ModelConfig
from nbengine.models.decoder import DecoderModel
from nbengine.models.interface import FlatBatch, LayerCache
from nbengine.models.loader import load_model
from nbengine.worker.model_runner import allocate_caches
from tests.models.tiny import VOCAB_SIZE

TinyModel = Callable[[str], Path]
BLOCK = 16


def _model(path: Path, dtype: str, quantization: Any = None) -> DecoderModel:
    model = load_model(ModelConfig(model=str(path), dtype=dtype, quantization=quantization), max_positions=256)  # type: ignore[arg-type]
    assert isinstance(model, DecoderModel)
    assert isinstance(model._fused, DecoderStack)
    return model


def _batch(*spans: tuple[int, int], wanted: list[int]) -> FlatBatch:
    """spans: each request's tokens in the cache already, and those of this step."""
    starts = torch.tensor([0, *torch.tensor([n for _, n in spans]).cumsum(0)], dtype=torch.int32)
    lengths = torch.tensor([done + n for done, n in spans], dtype=torch.int32)
    width = -(-int(lengths.max()) // BLOCK)
    tables = 1 + torch.randperm(len(spans) * width, dtype=torch.int32).view(len(spans), width)
    positions = torch.cat([torch.arange(done, done + n) for done, n in spans]).int()
    owner = torch.repeat_interleave(torch.arange(len(spans)), torch.tensor([n for _, n in spans]))
    slots = tables[owner, (positions // BLOCK).long()].long() * BLOCK + positions % BLOCK
    tokens = torch.randint(VOCAB_SIZE, (len(positions),), dtype=torch.int32)
    return FlatBatch(tokens, positions, slots, starts, lengths, tables, torch.tensor(wanted, dtype=torch.int64))


def _both_ways(model: DecoderModel, batch: FlatBatch, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, one call and many; the caches must come out the same."""
    blocks = 1 + batch.block_tables.numel()
    caches = allocate_caches(model.kv_shapes, blocks, BLOCK, device=model.device, dtype=model.dtype)
    for cache in caches:
        cache.key.normal_()
        cache.value.normal_()
    copies = [LayerCache(cache.key.clone(), cache.value.clone()) for cache in caches]
    fused, model._fused = model._fused, None
    with torch.inference_mode():
        apart = model.forward(batch, copies, **options)
        model._fused = fused
        whole = model.forward(batch, caches, **options)
    near = 0.05 if model.dtype == torch.bfloat16 else 1e-4
    for cache, copy in zip(caches, copies):
        torch.testing.assert_close(cache.key, copy.key, rtol=near, atol=near)
        torch.testing.assert_close(cache.value, copy.value, rtol=near, atol=near)
    torch.testing.assert_close(whole, apart, rtol=near, atol=near)
    return whole, apart


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("arch", ["llama", "llama3_rope", "smollm3", "mistral", "qwen2", "qwen2_window", "qwen3"])
def test_one_call_equals_many(arch: str, dtype: str, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = _model(tiny_model(arch), dtype)
    whole, _ = _both_ways(model, _batch((0, 13), (17, 1), (9, 5), wanted=[12, 13, 18, 12]))
    assert torch.equal(whole[0], whole[3])  # a row may be wanted twice
    _both_ways(model, _batch((40, 1), wanted=[0]))
    _both_ways(model, _batch((0, 71), (3, 1), wanted=[71, 0]))
    monkeypatch.setattr(stack, "TOKEN_LAYERS_OF_A_CALL", 100)
    _both_ways(model, _batch((0, 71), (3, 1), wanted=[71, 0]))  # a layer at a time
    _both_ways(model, _batch((0, 6), wanted=[]))  # a chunk of a prompt: nothing is sampled
    _both_ways(model, _batch((0, 6), wanted=[5]), num_layers=2)


MANY = ((0, 200), (60, 3), (0, 190), (31, 1))
assert sum(n for _, n in MANY) >= stack.MANY_ROWS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("arch", ["llama", "smollm3", "qwen3"])
def test_many_rows_go_in_blocks(arch: str, dtype: str, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = _model(tiny_model(arch), dtype)
    _both_ways(model, _batch(*MANY, wanted=[199, 202, 392, 393]))
    _both_ways(model, _batch(*MANY, wanted=list(range(394))))  # as for the log probabilities of prompts
    _both_ways(model, _batch(*MANY, wanted=[]))
    monkeypatch.setattr(stack, "TOKEN_LAYERS_OF_A_CALL", 100)
    _both_ways(model, _batch(*MANY, wanted=[393, 0]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised(quantization: str, dtype: str, tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = _model(tmp_path, dtype, quantization)
    _both_ways(model, _batch((0, 13), (17, 1), (9, 5), wanted=[12, 13, 18]))
    _both_ways(model, _batch((40, 1), wanted=[0]))
    _both_ways(model, _batch(*MANY, wanted=[199, 393]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_its_neighbours(dtype: str, tiny_model: TinyModel) -> None:
    """To the last bit: what seeded requests are promised."""
    torch.manual_seed(0)
    model = _model(tiny_model("llama"), dtype)
    batch = _batch((20, 1), (31, 1), (11, 1), (0, 9), wanted=[0, 1, 2])
    caches = allocate_caches(model.kv_shapes, 64, BLOCK, device=model.device, dtype=model.dtype)
    for cache in caches:
        cache.key.normal_()
        cache.value.normal_()
    with torch.inference_mode():
        together = model.forward(batch, caches)
        for r in range(3):
            alone = FlatBatch(
                batch.token_ids[r : r + 1], batch.positions[r : r + 1], batch.slot_mapping[r : r + 1],
                torch.tensor([0, 1], dtype=torch.int32), batch.seq_lens[r : r + 1], batch.block_tables[r : r + 1],
                torch.tensor([0]),
            )  # fmt: skip
            assert torch.equal(model.forward(alone, caches)[0], together[r])


def test_the_clock_of_a_pass_adds_up(tiny_model: TinyModel) -> None:
    model = _model(tiny_model("llama"), "float32")
    assert model._fused is not None
    for spans, wanted in ((((20, 1), (0, 9)), [0]), (MANY, [0])):
        model._fused.ticks[:] = 0
        _both_ways(model, _batch(*spans, wanted=wanted))
        spent = dict(zip(stack.PHASE_NAMES, model._fused.ticks[0]))
        assert all(ticks > 0 for ticks in spent.values()), spent


def test_other_caches_may_come_at_any_time(tiny_model: TinyModel) -> None:
    torch.manual_seed(0)
    model = _model(tiny_model("llama"), "float32")
    batch = _batch((0, 5), wanted=[4])
    first, _ = _both_ways(model, batch)
    second, _ = _both_ways(model, batch)
    torch.testing.assert_close(first, second)
