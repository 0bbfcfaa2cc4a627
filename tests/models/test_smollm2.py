"""The default model: greedy tokens equal transformers' own in float32, on prompts of every kind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from nbengine.config import ModelConfig
from nbengine.models.catalog import pull
from nbengine.models.loader import load_tokenizer, model_facts
from tests.models.tiny import reference_greedy, reference_logprobs, reference_model
from tests.worker.rig import Rig, greedy

pytestmark = pytest.mark.slow
NUM_TOKENS = 20

TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "Q: What is 12 * 12?\nA:",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\ndef softmax(x):\n",
    "SELECT name, count(*) FROM users WHERE",
    '{"name": "Ada", "born": 1815, "known_for": [',
    "Zürich, café, naïve, résumé: these words",
    "日本語のテキストは",
    "Привет, мир! Меня зовут",
    "emoji 😀😃👩‍👩‍👧‍👦🏳️‍🌈 and then",
    "مرحبا بالعالم",
    "x²+y³=½ ①②③ १२३",
    "  leading and   multiple spaces",
    "tabs\tand\nnew\n\n\nlines \n  x",
    "1234567890 3.14159 2024-11-29 10,000",
    "<|endoftext|>",
    "a",
]
CHATS = ["What is the capital of France?", "Write a haiku about the sea.", "Explain in one sentence what a GPU is."]


@pytest.fixture(scope="module")
def path() -> Path:
    return pull("smollm2-135m")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(ModelConfig())


@pytest.fixture(scope="module")
def rig(path: Path) -> Rig:
    return Rig(path, num_blocks=300, block_size=16)


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    return reference_model(path)


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> dict[str, list[int]]:
    made = {text: tokenizer.encode(text) for text in TEXTS}
    for text in CHATS:
        messages = [{"role": "user", "content": text}]
        made[text] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    generator = random.Random(1)
    made["1,000 random tokens"] = [generator.randrange(17, 49152) for _ in range(1000)]
    words = tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 120)
    made["1,000 tokens of prose"] = words[:1000]
    made["one token"] = [generator.randrange(17, 49152)]
    return made


@pytest.fixture(scope="module")
def expected(prompts: dict[str, list[int]], reference: Any) -> dict[str, list[int]]:
    return {name: reference_greedy(reference, prompt, NUM_TOKENS) for name, prompt in prompts.items()}


def test_it_knows_the_capital_of_france(rig: Rig, tokenizer: Any, prompts: dict[str, list[int]]) -> None:
    rig.add("a", prompts[CHATS[0]], greedy(8))
    assert tokenizer.decode(rig.generate()["a"]) == "The capital of France is Paris.<|im_end|>"


def test_alone(rig: Rig, prompts: dict[str, list[int]], expected: dict[str, list[int]]) -> None:
    for name, prompt in prompts.items():
        rig.add(name, prompt, greedy(NUM_TOKENS))
        assert rig.generate() == {name: expected[name]}, name


@pytest.mark.parametrize("chunk", [10_000, 129])
def test_batched(rig: Rig, prompts: dict[str, list[int]], expected: dict[str, list[int]], chunk: int) -> None:
    for name, prompt in prompts.items():
        rig.add(name, prompt, greedy(NUM_TOKENS))
    assert rig.generate(chunk=chunk) == expected


def test_logprobs(rig: Rig, reference: Any, prompts: dict[str, list[int]]) -> None:
    request = rig.add("a", prompts[CHATS[1]], greedy(10, logprobs=5))
    rig.generate(chunk=13)
    rows = reference_logprobs(reference, request.tokens)[len(request.prompt) - 1 :]
    for row, entry in zip(rows, request.logprobs):
        assert entry.logprobs == pytest.approx(row[entry.token_ids].tolist(), abs=1e-4)


def test_facts() -> None:
    facts = model_facts(ModelConfig())
    assert (facts.max_len, facts.vocab_size, facts.eos_token_ids) == (8192, 49152, [2])
