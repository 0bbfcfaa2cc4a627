"""Every promised architecture gives transformers' own greedy tokens, however its prompt is cut and batched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nbengine.models.decoder import DecoderModel
from nbengine.models.transformers_backend import TransformersModel
from tests.models.tiny import CONFIGS, reference_greedy, reference_logprobs, reference_model
from tests.worker.rig import Rig, greedy, random_prompt

TinyModel = Callable[[str], Path]
LENGTHS = (1, 2, 13, 40, 67)
NUM_TOKENS = 12


def _prompts() -> dict[str, list[int]]:
    return {f"r{length}": random_prompt(length, length) for length in LENGTHS}


@pytest.mark.parametrize("arch", sorted(CONFIGS))
def test_greedy_tokens_equal_transformers(arch: str, tiny_model: TinyModel) -> None:
    """Alone, all together, and all together in chunks of odd sizes, over scattered blocks."""
    path = tiny_model(arch)
    reference = reference_model(path)
    expected = {name: reference_greedy(reference, prompt, NUM_TOKENS) for name, prompt in _prompts().items()}
    assert len({tuple(tokens) for tokens in expected.values()}) > 1
    rig = Rig(path)
    native = isinstance(rig.model, DecoderModel)
    assert native is (arch not in ("gpt2", "gemma2", "gemma3"))
    assert native or isinstance(rig.model, TransformersModel)
    for name, prompt in _prompts().items():
        rig.add(name, prompt, greedy(NUM_TOKENS))
        assert rig.generate() == {name: expected[name]}
    for chunk in (10_000, 7, 3):
        for name, prompt in _prompts().items():
            rig.add(name, prompt, greedy(NUM_TOKENS))
        assert rig.generate(chunk=chunk) == expected


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_logprobs_equal_transformers(arch: str, tiny_model: TinyModel) -> None:
    """Chosen token, alternatives, ranks and the prompt's own, to 1e-4."""
    path = tiny_model(arch)
    rig = Rig(path)
    prompt = random_prompt(5, 23)
    request = rig.add("a", prompt, greedy(6, logprobs=3, prompt_logprobs=2))
    rig.add("b", random_prompt(6, 9), greedy(6))  # asks for none
    rig.generate(chunk=5)
    expected = reference_logprobs(reference_model(path), request.tokens)
    assert len(request.logprobs) == 6
    for i, entry in enumerate(request.logprobs):
        row = expected[len(prompt) - 1 + i]
        assert entry.token_ids[0] == request.output[i]
        assert entry.token_ids[1:] == row.topk(3).indices.tolist()
        assert entry.logprobs == pytest.approx(row[entry.token_ids].tolist(), abs=1e-4)
        assert entry.rank == 1
    assert len(request.prompt_logprobs) == len(prompt) - 1
    for position, entry in enumerate(request.prompt_logprobs, start=1):
        row = expected[position - 1]
        assert entry.token_ids[0] == prompt[position]
        assert entry.token_ids[1:] == row.topk(2).indices.tolist()
        assert entry.logprobs == pytest.approx(row[entry.token_ids].tolist(), abs=1e-4)
        assert entry.rank == int((row > row[prompt[position]]).sum()) + 1


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gpt2"])
def test_bfloat16_runs_close_to_float32(arch: str, tiny_model: TinyModel) -> None:
    path = tiny_model(arch)
    rows = []
    for dtype in ("float32", "bfloat16"):
        rig = Rig(path, dtype=dtype)
        assert rig.model.dtype == getattr(torch, dtype)
        request = rig.add("a", random_prompt(3, 30), greedy(1, logprobs=5))
        rig.generate()
        rows.append(dict(zip(request.logprobs[0].token_ids, request.logprobs[0].logprobs)))
    common = rows[0].keys() & rows[1].keys()
    assert len(common) >= 3
    assert all(rows[0][token] == pytest.approx(rows[1][token], abs=0.3) for token in common)
