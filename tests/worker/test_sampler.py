"""The sampler against plain formulas, row by row: what a batch does to a row is what the row alone gets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from nbengine_kernels import kernels_for
from torch import Tensor

from nbengine.sampling_params import SamplingParams
from nbengine.worker.input_batch import RequestInfo
from nbengine.worker.random_draws import seed_bits, uniform
from nbengine.worker.sampler import Sampled, Sampler, invert
from nbengine.worker.sampling_table import SamplingBatch, SamplingTable

VOCAB = 50
EOS = 7


def _sample(logits: Tensor, params: list[SamplingParams], prompts: list[list[int]], outputs: list[list[int]]) -> Sampled:
    """One sampler call for a batch described by plain lists, on rows that are not the first ones of the table."""
    rows = np.arange(len(params)) * 2 + 1
    table = SamplingTable(2 * len(params) + 1)
    token_ids = np.full((2 * len(params) + 1, 300), 3, np.int32)
    requests: list[RequestInfo | None] = [None] * (2 * len(params) + 1)
    lengths = np.zeros(len(params), np.int64)
    for i, (each, prompt, output) in enumerate(zip(params, prompts, outputs)):
        info = requests[rows[i]] = RequestInfo(f"r{i}", each, len(prompt), EOS)
        table.set(int(rows[i]), info)
        lengths[i] = len(prompt) + len(output)
        token_ids[rows[i], : lengths[i]] = prompt + output
    batch = table.batch(rows, lengths, token_ids, requests)
    return Sampler(kernels_for("cpu", torch.float32)).sample(logits.clone(), batch, num_alternatives=3)


def _logits(rows: int, seed: int = 0, vocabulary: int = VOCAB) -> Tensor:
    return 2.0 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def _one(logits: Tensor, output: list[int] | None = None, prompt: list[int] | None = None, **options: Any) -> int:
    options.setdefault("temperature", 0.0)
    params = SamplingParams(**options)
    return int(_sample(logits[None], [params], [prompt or [1]], [output or []]).tokens[0])


# ----------------------------------------------------------------------------------------------------------------- draws


def test_draws_are_a_pure_function_of_seed_and_index() -> None:
    seeds = np.array([seed_bits(s) for s in (0, 1, -1, 2**63, 2**70)], np.uint64)
    table = np.stack([uniform(seeds, np.full(5, i, np.int64)) for i in range(2000)])
    assert ((table >= 0) & (table < 1)).all()
    assert np.abs(table.mean(axis=0) - 0.5).max() < 0.02
    assert np.abs(np.corrcoef(table[:, :4], rowvar=False) - np.eye(4)).max() < 0.08
    assert np.abs(np.corrcoef(table[:-1, 0], table[1:, 0])[0, 1]) < 0.08
    assert len(np.unique(table[:, :3])) == 6000
    assert uniform(seeds[1:2], np.array([5]))[0] == table[5, 1]


FROZEN_DRAWS = [0.6524484863740305, 0.7012121095215242, 0.7347204584623626]


def test_draws_stay_what_they_are() -> None:
    """The generator is part of the promise: a seed gives the same text after an update of nbengine."""
    seeds = np.array([0, 0, 42], np.uint64)
    assert uniform(seeds, np.array([0, 1, 7])).tolist() == pytest.approx(FROZEN_DRAWS, abs=0)


def test_inverting_never_gives_an_impossible_token() -> None:
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0, 0.0]]).repeat(5, 1)
    numbers = torch.tensor([0.0, 0.2499, 0.25, 0.999, 1.0 - 2.0**-48], dtype=torch.float64)
    assert invert(probabilities, numbers).tolist() == [1, 1, 3, 3, 3]


def test_the_distribution_is_the_softmax() -> None:
    logits = _logits(1, seed=3, vocabulary=12)
    count = 4000
    params = [SamplingParams(temperature=0.7, seed=s) for s in range(count)]
    drawn = _sample(logits.repeat(count, 1), params, [[1]] * count, [[]] * count).tokens
    expected = (logits[0] / 0.7).softmax(-1).numpy()
    observed = np.bincount(drawn, minlength=12) / count
    chi_square = (count * (observed - expected) ** 2 / expected).sum()
    assert chi_square < 31.3  # 11 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    "options", [{"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 6, "top_p": 0.8, "min_p": 0.05}, {"top_k": 1}]
)
def test_filters_leave_the_right_tokens(options: dict[str, Any]) -> None:
    logits = _logits(1, seed=4)
    count = 600
    params = [SamplingParams(temperature=1.3, seed=s, **options) for s in range(count)]
    drawn = set(_sample(logits.repeat(count, 1), params, [[1]] * count, [[]] * count).tokens.tolist())
    probabilities = (logits[0] / 1.3).softmax(-1)
    kept = probabilities >= options.get("min_p", 0.0) * probabilities.max()
    if top_k := options.get("top_k"):
        kept &= probabilities >= probabilities.topk(top_k).values[-1]
    renormalised = probabilities * kept / (probabilities * kept).sum()
    ordered, order = renormalised.sort(descending=True)
    before = ordered.cumsum(0) - ordered
    allowed = set(order[(before < options.get("top_p", 1.0)) & (ordered > 0)].tolist())
    assert drawn <= allowed
    likely = {token for token in allowed if renormalised[token] > 0.02}
    assert likely <= drawn


def test_a_seed_draws_the_same_alone_and_in_any_batch() -> None:
    logits = _logits(40, seed=5)
    params = [
        SamplingParams(temperature=0.5 + i % 3, top_p=[1.0, 0.9][i % 2], top_k=[0, 0, 20][i % 3], seed=1000 + i)
        if i % 5
        else SamplingParams(temperature=0.0)
        for i in range(40)
    ]
    outputs = [[3] * (i % 7) for i in range(40)]
    together = _sample(logits, params, [[1, 2]] * 40, outputs).tokens.tolist()
    alone = [int(_sample(logits[i : i + 1], [params[i]], [[1, 2]], [outputs[i]]).tokens[0]) for i in range(40)]
    assert together == alone
    other_order = _sample(logits.flip(0), params[::-1], [[1, 2]] * 40, outputs[::-1]).tokens.tolist()
    assert other_order[::-1] == together


def test_the_draw_depends_on_the_output_index_and_not_on_the_prompt() -> None:
    logits, params = _logits(1, seed=6), SamplingParams(temperature=3.0, seed=9)
    by_index = [int(_sample(logits, [params], [[1] * 5], [[2] * i]).tokens[0]) for i in range(12)]
    assert len(set(by_index)) > 5
    assert by_index == [int(_sample(logits, [params], [[1] * 9], [[2] * i]).tokens[0]) for i in range(12)]


def test_greedy_takes_the_first_of_equal_logits() -> None:
    logits = torch.zeros(VOCAB)
    logits[[11, 30]] = 5.0
    assert _one(logits) == 11


@pytest.mark.parametrize("dialect", ["cpu", "reference"])
def test_looking_for_alternatives_changes_no_greedy_choice(dialect: str) -> None:
    logits = _logits(5)
    logits[1, [30, 7]] = 90.0  # equal
    logits[2, 33] = torch.nan
    logits[3, [8, 4]] = torch.inf
    batch = SamplingBatch(np.zeros(5, np.int64), np.zeros(5, np.uint64))
    kernels = kernels_for("cpu", torch.float32, force=dialect)
    alone, observed = (Sampler(kernels).sample(logits.clone(), batch, num_alternatives=n).tokens for n in (0, 3))
    assert alone.tolist() == observed.tolist()
    assert [int(t) for t in alone[1:4]] == [7, 33, 4]


# ------------------------------------------------------------------------------------------------- rules and penalties


def _penalised(logits: Tensor, params: SamplingParams, prompt: list[int], output: list[int]) -> Tensor:
    """The definition, token by token."""
    changed = logits.clone()
    for token in range(len(logits)):
        if token in prompt or token in output:
            value = changed[token]
            changed[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        count = output.count(token)
        changed[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return changed


def test_penalties_follow_their_definition() -> None:
    rng = np.random.default_rng(0)
    params, prompts, outputs = [], [], []
    for i in range(30):
        options: dict[str, Any] = [
            {"repetition_penalty": 1.7},
            {"frequency_penalty": 0.6},
            {"presence_penalty": -1.5},
            {"repetition_penalty": 0.8, "frequency_penalty": -0.4, "presence_penalty": 1.0},
            {},
        ][i % 5]
        params.append(SamplingParams(temperature=0.0, **options))
        prompts.append(rng.integers(0, VOCAB, 6).tolist())
        outputs.append(rng.integers(0, VOCAB, i).tolist())
    logits = _logits(30, seed=8)
    expected = [int(_penalised(*row).argmax()) for row in zip(logits, params, prompts, outputs)]
    assert expected != logits.argmax(-1).tolist()
    assert _sample(logits, params, prompts, outputs).tokens.tolist() == expected


def test_min_tokens_holds_back_every_end() -> None:
    logits = torch.zeros(VOCAB)
    logits[EOS], logits[9], logits[4] = 9.0, 8.0, 7.0
    options: dict[str, Any] = {"min_tokens": 3, "stop_token_ids": [9], "max_tokens": 9}
    assert [_one(logits, output=[5] * n, **options) for n in range(5)] == [4, 4, 4, EOS, EOS]


def test_bias_allowed_and_bad_words() -> None:
    logits = _logits(1, seed=9)[0]
    best = int(logits.argmax())
    other = (best + 3) % VOCAB
    assert _one(logits, logit_bias={other: 100.0}) == other
    assert _one(logits, logit_bias={best: -100.0}) != best
    assert _one(logits, allowed_token_ids=[other]) == other
    assert _one(logits, bad_words_token_ids=[[best]]) != best
    assert _one(logits, output=[5, 6], bad_words_token_ids=[[5, 6, best]]) != best
    assert _one(logits, output=[6, 5], bad_words_token_ids=[[5, 6, best]]) == best
    assert _one(logits, output=[6], prompt=[5], bad_words_token_ids=[[5, 6, best]]) == best  # the prompt does not count


def test_ids_outside_the_vocabulary_change_nothing() -> None:
    logits = _logits(1, seed=10)[0]
    best = int(logits.argmax())
    outside = [-1, VOCAB, 10**9]
    assert _one(logits, logit_bias=dict.fromkeys(outside, 50.0)) == best
    assert _one(logits, allowed_token_ids=[*outside, best]) == best
    assert _one(logits, allowed_token_ids=outside) == best
    assert _one(logits, bad_words_token_ids=[[token] for token in outside]) == best
    assert _one(logits, min_tokens=2, max_tokens=3, stop_token_ids=outside) == best


def test_rules_touch_their_own_row_only() -> None:
    logits = _logits(3, seed=11)
    plain = SamplingParams(temperature=0.0)
    ruled = SamplingParams(temperature=0.0, allowed_token_ids=[2], repetition_penalty=2.0)
    sampled = _sample(logits, [plain, ruled, plain], [[1]] * 3, [[4, 5]] * 3)
    assert sampled.tokens.tolist() == [int(logits[0].argmax()), 2, int(logits[2].argmax())]


# -------------------------------------------------------------------------------------------------------------- logprobs


def test_logprobs_are_of_the_raw_logits() -> None:
    """Before temperature, penalties and rules, as in vLLM; each row as many as it asks for."""
    logits = _logits(4, seed=12)
    params = [
        SamplingParams(temperature=0.0, logprobs=0),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=2.0, seed=1, logprobs=4, repetition_penalty=1.5),
        SamplingParams(temperature=0.0, logprobs=2, allowed_token_ids=[13]),
    ]
    sampled = _sample(logits, params, [[1, 2]] * 4, [[4]] * 4)
    expected = logits.log_softmax(-1)
    assert sampled.logprobs is not None and sampled.logprobs[1] is None
    for row, count in ((0, 0), (2, 4), (3, 2)):
        entry = sampled.logprobs[row]
        assert entry is not None
        token = int(sampled.tokens[row])
        assert entry.token_ids == [token, *expected[row].topk(count).indices.tolist()]
        assert entry.logprobs == pytest.approx(expected[row][entry.token_ids].tolist(), abs=1e-5)
        assert entry.rank == int((expected[row] > expected[row, token]).sum()) + 1
    assert sampled.logprobs[3] is not None and sampled.logprobs[3].token_ids[0] == 13
    assert sampled.top_probs is not None and sampled.top_token_ids is not None
    assert sampled.top_probs.tolist()[0] == pytest.approx(expected[0].exp().topk(3).values.tolist(), abs=1e-6)


def test_more_logprobs_than_tokens_give_all_tokens() -> None:
    logits = _logits(1, seed=13, vocabulary=5)
    entry = (_sample(logits, [SamplingParams(temperature=0.0, logprobs=20)], [[1]], [[]]).logprobs or [None])[0]
    assert entry is not None and len(entry.token_ids) == 6
    assert math.fsum(math.exp(value) for value in entry.logprobs[1:]) == pytest.approx(1.0, abs=1e-5)
