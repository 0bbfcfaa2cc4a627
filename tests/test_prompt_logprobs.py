"""prompt_logprobs through the whole engine: once, complete, and transformers' numbers, however the prompt is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nbengine import LLM, LLMEngine, RequestOutputKind, SamplingParams
from nbengine.config import EngineArgs
from nbengine.outputs import RequestOutput
from tests.models.tiny import reference_logprobs, reference_model
from tests.worker.rig import random_prompt

TinyModel = Callable[[str], Path]


def make(path: Path, **options: Any) -> LLM:
    small = {"block_size": 4, "num_gpu_blocks_override": 64, "max_model_len": 128, "skip_tokenizer_init": True}
    return LLM(str(path), **small | options)


def check(output: RequestOutput, reference: torch.Tensor, count: int) -> None:
    """reference: (P, V) log probabilities of the token after each position."""
    prompt, found = output.prompt_token_ids, output.prompt_logprobs
    assert found is not None and len(found) == len(prompt) and found[0] is None
    for position, entry in enumerate(found[1:], start=1):
        assert entry is not None
        expected = reference[position - 1]
        chosen = entry[prompt[position]]
        assert chosen.logprob == pytest.approx(expected[prompt[position]].item(), abs=1e-4)
        assert chosen.rank == int((expected > expected[prompt[position]]).sum()) + 1
        top = set(expected.topk(count).indices.tolist()) if count else set()
        assert set(entry) == top | {prompt[position]}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 7, "max_num_seqs": 4},
        {"enable_prefix_caching": False},
        {"num_gpu_blocks_override": 14, "max_model_len": 52},  # preemptions: parts of prompts are computed twice
    ],
)
def test_values_are_those_of_transformers(tiny_model: TinyModel, options: dict[str, Any]) -> None:
    path = tiny_model("llama")
    reference = reference_model(path)
    prompts = [random_prompt(seed, 17 + seed, 211) for seed in range(3)]
    params = [SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, prompt_logprobs=k) for k in (0, 2, 5)]
    with make(path, **options) as llm:
        for _ in range(2):  # the second time all of it lies in the prefix cache
            for output, wanted in zip(llm.generate(prompts, params, use_tqdm=False), params):
                assert wanted.prompt_logprobs is not None
                check(output, reference_logprobs(reference, output.prompt_token_ids), wanted.prompt_logprobs)
                assert output.num_cached_tokens == 0
        if "num_gpu_blocks_override" in options:
            assert next(m for m in llm.get_metrics() if m.name == "vllm:num_preemptions").value > 0  # type: ignore[attr-defined]


def test_a_prompt_preempted_halfway_gives_each_position_once(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    prompt = random_prompt(5, 23, 211)
    with make(path, max_num_batched_tokens=6, max_num_seqs=2) as llm:
        dbg = llm.debug()
        name = dbg.add(prompt, temperature=0, max_tokens=2, prompt_logprobs=1)
        dbg.step(2)
        dbg.preempt(name)
        dbg.back(1)
        dbg.preempt(name)
        dbg.run()
        check(dbg.output(name), reference_logprobs(reference_model(path), prompt), 1)


def test_a_stream_of_deltas_has_them_once(tiny_model: TinyModel) -> None:
    args = EngineArgs(model=str(tiny_model("llama")), max_model_len=64, num_gpu_blocks_override=64, skip_tokenizer_init=True)
    engine = LLMEngine.from_engine_args(args)
    options: dict[str, Any] = {"max_tokens": 4, "seed": 1, "prompt_logprobs": 1, "ignore_eos": True}
    for kind in (RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE):
        engine.add_request(kind, [5, 6, 7], SamplingParams(output_kind=kind, n=2, **options))
    outputs: dict[str, list[RequestOutput]] = {"delta": [], "cumulative": []}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id].append(output)
    assert [output.prompt_logprobs is not None for output in outputs["delta"]] == [True, False, False, False]
    assert all(output.prompt_logprobs == outputs["delta"][0].prompt_logprobs for output in outputs["cumulative"])
    engine.shutdown()


def test_deltas_that_nobody_took_in_time_keep_them(tiny_model: TinyModel) -> None:
    with make(tiny_model("llama")) as llm:
        engine = llm.llm_engine
        params = SamplingParams(
            max_tokens=4, seed=1, prompt_logprobs=1, output_kind=RequestOutputKind.DELTA, ignore_eos=True
        )
        engine.add_request("a", [5, 6, 7], params)
        while engine.has_unfinished_requests():
            engine.advance()
        (output,) = engine.take_outputs()
        assert len(output.outputs[0].token_ids) == 4 and output.prompt_logprobs is not None


def test_a_prompt_of_one_token_has_one_empty_place(tiny_model: TinyModel) -> None:
    with make(tiny_model("llama")) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=3, seed=1)
        assert llm.generate([[5]], params, use_tqdm=False)[0].prompt_logprobs == [None]
        assert llm.generate([[5]], params.clone(prompt_logprobs=None), use_tqdm=False)[0].prompt_logprobs is None


def test_bad_words_are_never_put_out(tiny_model: TinyModel) -> None:
    with make(tiny_model("llama")) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        before = llm.generate([[5, 6]], params, use_tqdm=False)[0].outputs[0].token_ids
        banned = [before[:1], before[3:5]]  # a token, and a pair
        after = llm.generate([[5, 6]], params.clone(bad_words_token_ids=banned), use_tqdm=False)[0].outputs[0].token_ids
        assert before[0] not in after
        assert before[3:5] not in [after[i : i + 2] for i in range(len(after))]
