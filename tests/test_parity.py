"""Greedy tokens equal transformers' own, token for token, through the whole engine, however the steps are cut.

Each way below makes the same tokens by another road: alone or together, prompts whole or in chunks, prefixes found or
computed, with room for all or in a pool so small that requests lose their place and start over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbengine import LLM, SamplingParams
from tests.models.tiny import VOCAB_SIZE, reference_greedy, reference_model

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma3"]
NUM_TOKENS = 24
ROOMY: dict[str, Any] = {"num_gpu_blocks_override": 100, "block_size": 4, "max_model_len": 128}
CRAMPED: dict[str, Any] = {"num_gpu_blocks_override": 27, "block_size": 4, "max_model_len": 100}
WAYS: dict[str, dict[str, Any]] = {
    "whole prompts, prefix cache": ROOMY,
    "whole prompts, no prefix cache": ROOMY | {"enable_prefix_caching": False},
    "chunks of 7, prefix cache": ROOMY | {"max_num_batched_tokens": 7, "max_num_seqs": 5},
    "chunks of 7, no prefix cache": ROOMY | {"max_num_batched_tokens": 7, "max_num_seqs": 5, "enable_prefix_caching": False},
    "no chunking": ROOMY | {"enable_chunked_prefill": False, "max_num_batched_tokens": 128},
    "preempted, prefix cache": CRAMPED,
    "preempted, no prefix cache": CRAMPED | {"enable_prefix_caching": False},
    "preempted, in chunks": CRAMPED | {"max_num_batched_tokens": 9, "max_num_seqs": 6},
    "priority, preempted": CRAMPED | {"scheduling_policy": "priority"},
}


def prompts() -> list[list[int]]:
    """Seven prompts of 1 to 60 tokens, two of which share their first 20."""
    rng = random.Random(3)

    def ids(n: int) -> list[int]:
        return [rng.randrange(3, VOCAB_SIZE) for _ in range(n)]

    shared = ids(20)
    return [ids(1), ids(4), ids(13), shared + ids(5), shared + ids(9), ids(32), ids(60)]


@pytest.fixture(scope="module")
def expected(tiny_model: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    known: dict[str, list[list[int]]] = {}

    def of(arch: str) -> list[list[int]]:
        if arch not in known:
            model = reference_model(tiny_model(arch))
            known[arch] = [reference_greedy(model, prompt, NUM_TOKENS) for prompt in prompts()]
        return known[arch]

    return of


def generate(llm: LLM, batch: list[list[int]], **params: Any) -> list[list[int]]:
    """Token ids of each prompt; the invariants are checked after every step."""
    sampling = SamplingParams(
        **{"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "detokenize": False} | params
    )
    engine = llm.llm_engine
    for i, prompt in enumerate(batch):
        engine.add_request(str(i), {"prompt_token_ids": prompt}, sampling, priority=-i)
    done: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = list(output.outputs[0].token_ids)
        engine.engine_core.core.check_invariants()  # type: ignore[attr-defined]
    return [done[str(i)] for i in range(len(batch))]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("way", WAYS)
def test_tokens_equal_transformers(
    way: str, arch: str, tiny_model: Callable[[str], Path], expected: Callable[[str], list[list[int]]]
) -> None:
    with LLM(str(tiny_model(arch)), skip_tokenizer_init=True, **WAYS[way]) as llm:
        assert generate(llm, prompts()) == expected(arch)
        if "preempted" in way:
            assert llm.llm_engine.engine_core.core.scheduler.num_preemptions > 0  # type: ignore[attr-defined]
        # Again: now every prompt that the cache kept is found.
        assert generate(llm, prompts()) == expected(arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_alone_equals_transformers(
    arch: str, tiny_model: Callable[[str], Path], expected: Callable[[str], list[list[int]]]
) -> None:
    with LLM(str(tiny_model(arch)), skip_tokenizer_init=True, **ROOMY) as llm:
        assert [generate(llm, [prompt])[0] for prompt in prompts()] == expected(arch)


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_draws_the_same_alone_in_a_batch_and_after_preemption(way: str, tiny_model: Callable[[str], Path]) -> None:
    path = str(tiny_model("llama"))
    params = {"temperature": 0.8, "top_p": 0.95, "seed": 11}
    with LLM(path, skip_tokenizer_init=True, **ROOMY) as llm:
        alone = [generate(llm, [prompt], **params)[0] for prompt in prompts()]
    with LLM(path, skip_tokenizer_init=True, **WAYS[way]) as llm:
        assert generate(llm, prompts(), **params) == alone
    assert alone[0] != generate_greedy(path)[0]


def generate_greedy(path: str) -> list[list[int]]:
    with LLM(path, skip_tokenizer_init=True, **ROOMY) as llm:
        return generate(llm, prompts())
