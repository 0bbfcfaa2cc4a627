"""The runner takes any plan: cut, mixed, repeated after a failure, edited, preempted, and after forgetting everything."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nbengine.errors import InvariantError
from nbengine.plan import CachedRequestData, SchedulerOutput
from nbengine.worker.model_runner import RunnerLimits
from tests.models.tiny import reference_greedy, reference_logprobs, reference_model
from tests.worker.rig import Rig, RigRequest, greedy, random_prompt

TinyModel = Callable[[str], Path]


@pytest.fixture(scope="module")
def path(tiny_model: TinyModel) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    return reference_model(path)


def test_prefill_and_decode_share_a_step(path: Path, reference: Any) -> None:
    rig = Rig(path)
    a, b, c = (
        rig.add(name, random_prompt(i, length), greedy()) for i, (name, length) in enumerate([("a", 9), ("b", 30), ("c", 1)])
    )
    rig.run({"a": 9})
    rig.run({"a": 1, "b": 11})
    assert (len(a.output), len(b.output)) == (2, 0)
    rig.run({"b": 12, "a": 1})  # batch order is the plan's, not the order of arrival
    rig.run({"c": 1, "b": 7, "a": 1})
    rig.run({"a": 1, "c": 1, "b": 1})
    for request in (a, b, c):
        assert request.output == reference_greedy(reference, request.prompt, len(request.output))


def test_the_runner_goes_by_its_own_copy_when_the_plan_does_not_say_the_token(path: Path, reference: Any) -> None:
    rig = Rig(path)
    request = rig.add("a", random_prompt(1, 14), greedy(10))
    rig.generate(chunk=5, say_next=False)
    assert request.output == reference_greedy(reference, request.prompt, 10)


def test_an_edited_token_is_what_the_next_step_reads(path: Path, reference: Any) -> None:
    rig = Rig(path)
    request = rig.add("a", random_prompt(2, 10), greedy())
    rig.run({"a": 10})
    request.output[-1] = (request.output[-1] + 17) % 200
    for _ in range(4):
        rig.run({"a": 1})
    assert request.output[1:] == reference_greedy(reference, request.prompt + request.output[:1], 4)


def test_preempted_and_resumed_tokens_are_the_same(path: Path, reference: Any) -> None:
    rig = Rig(path)
    request = rig.add("a", random_prompt(3, 13), greedy(12))
    other = rig.add("b", random_prompt(4, 6), greedy(12))
    rig.run({"a": 13, "b": 6})
    for _ in range(3):
        rig.run({"a": 1, "b": 1})
    rig.preempt("a")
    rig.run({"b": 1})
    rig.run({"b": 1, "a": 9})  # the resumed request in two chunks, over output tokens too
    rig.run({"a": rig.remaining("a"), "b": 1})
    rig.generate()
    for each in (request, other):
        assert each.output == reference_greedy(reference, each.prompt, 12)


def test_finished_rows_are_used_again(path: Path, reference: Any) -> None:
    rig = Rig(path)
    for i in range(20):
        request = rig.add(f"r{i}", random_prompt(i, 3 + i), greedy(3))
        assert rig.generate() == {f"r{i}": reference_greedy(reference, request.prompt, 3)}
    assert len(rig.runner.batch.requests) == 8
    rig.run({})  # a plan that only says which requests ended
    assert not rig.runner.batch.row_of


def test_more_requests_than_promised_only_cost_memory(path: Path, reference: Any) -> None:
    rig = Rig(path)
    for i in range(19):
        rig.add(f"r{i}", random_prompt(i, 4), greedy(3))
    prompts = {name: request.prompt for name, request in rig.requests.items()}
    assert rig.generate() == {name: reference_greedy(reference, prompt, 3) for name, prompt in prompts.items()}


@pytest.mark.parametrize("where", ["forward", "late in forward", "sample", "apply"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_step_can_be_run_again(
    path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch, where: str, error: type[BaseException]
) -> None:
    """The same plan after a failure: blocks are not added twice, and tokens come out as if nothing had happened."""
    rig = Rig(path)
    a = rig.add("a", random_prompt(5, 8), greedy())
    b = rig.add("b", random_prompt(6, 7), greedy())
    rig.run({"a": 8})
    plan = rig.plan({"a": 1, "b": 7})  # a gets a new block, b is new
    assert plan.scheduled_cached_reqs.new_block_ids[0]

    def fail(*_: object, **__: object) -> None:
        raise error("injected")

    forward = rig.model.forward

    def fail_late(*args: Any, **options: Any) -> None:
        forward(*args, **options)  # the KV cache is written
        fail()

    with monkeypatch.context() as patch:
        if where == "forward":
            patch.setattr(rig.model, "forward", fail)
        elif where == "late in forward":
            patch.setattr(rig.model, "forward", fail_late)
        elif where == "sample":
            patch.setattr(rig.runner._sampler, "sample", fail)
        else:
            patch.setattr(rig.runner.sampling, "set", fail)
        for _ in range(2):
            with pytest.raises(error, match="injected"):
                rig.runner.execute(plan)
    rig.update(plan, rig.runner.execute(plan))
    for _ in range(6):
        rig.run({"a": 1, "b": 1})
    for request in (a, b):
        assert request.output == reference_greedy(reference, request.prompt, len(request.output))


def test_a_failed_plan_may_be_dropped_for_another(path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(path)
    rig.add("a", random_prompt(5, 8), greedy())
    b = rig.add("b", random_prompt(6, 7), greedy(5))
    with monkeypatch.context() as patch:
        patch.setattr(rig.runner._sampler, "sample", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rig.run({"a": 8, "b": 3})
    b.computed, b.known = 0, False  # the scheduler describes it anew
    rig.finish("a")
    assert rig.generate() == {"b": reference_greedy(reference, b.prompt, 5)}


def test_after_forgetting_all_requests_come_as_new(path: Path, reference: Any) -> None:
    """A rewind: the KV content stays, the scheduler goes back two steps and describes every request again."""
    rig = Rig(path)
    request = rig.add("a", random_prompt(8, 10), greedy(9))
    rig.run({"a": 10})
    for _ in range(4):
        rig.run({"a": 1})
    rig.runner.forget_requests()
    request.output, request.computed, request.known = request.output[:3], 12, False
    rig.generate()
    assert request.output == reference_greedy(reference, request.prompt, 9)


def test_a_request_that_nobody_described_is_named(path: Path) -> None:
    rig = Rig(path)

    def plan(**parts: Any) -> SchedulerOutput:
        empty: dict[str, Any] = {
            "step": 0,
            "scheduled_new_reqs": [],
            "scheduled_resumed_reqs": [],
            "scheduled_cached_reqs": CachedRequestData([], [], []),
            "num_scheduled_tokens": {"ghost": 1},
            "total_num_scheduled_tokens": 1,
            "preempted_req_ids": [],
            "finished_req_ids": [],
        }
        return SchedulerOutput(**empty | parts)

    with pytest.raises(InvariantError, match="ghost"):
        rig.runner.execute(plan())
    with pytest.raises(InvariantError, match="ghost"):
        rig.runner.execute(plan(scheduled_cached_reqs=CachedRequestData(["ghost"], [None], [3])))
    request = rig.add("a", random_prompt(1, 4), greedy(2))
    rig.generate()
    assert len(request.output) == 2


def test_a_cached_prefix_is_read_from_the_blocks(path: Path, reference: Any) -> None:
    """num_computed_tokens > 0 on arrival: the runner computes the rest over blocks that another request filled."""
    rig = Rig(path)
    prompt = random_prompt(9, 21)
    first = rig.add("a", prompt, greedy(4))
    rig.run({"a": 21})
    second = rig.add("b", prompt, greedy(4))
    second.blocks, second.computed = first.blocks[:5], 20  # 5 full blocks of 4
    rig.run({"b": 1, "a": 1})
    assert second.output == first.output[:1] == reference_greedy(reference, prompt, 1)


def test_times_are_measured_and_other_threads_may_step(path: Path) -> None:
    """Inference mode is a property of the thread: a second one must not build a graph."""
    import threading

    rig = Rig(path)
    rig.add("a", random_prompt(1, 5), greedy())
    output = rig.run({"a": 5})
    assert output.prepare_s > 0 and output.forward_s > 0 and output.sample_s > 0
    seen: list[bool] = []
    forward = rig.model.forward

    def spy(*args: Any, **options: Any) -> torch.Tensor:
        seen.append(torch.is_inference_mode_enabled())
        return forward(*args, **options)

    rig.model.forward = spy  # type: ignore[method-assign]
    thread = threading.Thread(target=rig.run, args=({"a": 1},))
    thread.start()
    thread.join()
    assert seen == [True] and len(rig.requests["a"].output) == 2


def test_the_observer_sees_the_batch_and_the_alternatives(path: Path, reference: Any) -> None:
    rig = Rig(path)
    a = rig.add("a", random_prompt(1, 6), greedy())
    rig.add("b", random_prompt(2, 9), greedy())
    rig.run({"a": 6})
    assert rig.runner.batch_tensors() is None
    rig.runner.observed = True
    rig.run({"b": 5, "a": 1})
    seen = rig.runner.batch_tensors()
    assert seen is not None

    def ints(raw: bytes) -> list[int]:
        return [int(value) for value in np.frombuffer(raw, "<i4")]

    assert ints(seen.token_ids) == [*random_prompt(2, 9)[:5], a.output[0]]
    assert ints(seen.positions) == [0, 1, 2, 3, 4, 6]
    assert ints(seen.query_start_loc) == [0, 5, 6]
    assert ints(seen.seq_lens) == [5, 7]
    b = rig.requests["b"]
    assert ints(seen.slot_mapping) == [b.blocks[i // 4] * 4 + i % 4 for i in range(5)] + [a.blocks[1] * 4 + 2]
    assert seen.num_alternatives == 5
    tokens = np.frombuffer(seen.top_token_ids, "<i4").reshape(2, 5)
    probs = np.frombuffer(seen.top_probs, "<f4").reshape(2, 5)
    assert tokens[0].tolist() == [-1] * 5 and probs[0].tolist() == [0.0] * 5
    expected = reference_logprobs(reference, a.tokens[:7])[-1].exp()
    assert tokens[1].tolist() == expected.topk(5).indices.tolist() and tokens[1, 0] == a.output[1]
    assert probs[1].tolist() == pytest.approx(expected.topk(5).values.tolist(), abs=1e-4)


def test_sequences_longer_than_promised_only_cost_memory(path: Path, reference: Any) -> None:
    rig = Rig(path)
    rig.runner.limits = RunnerLimits(1, 8, 4, rig.block_size)
    rig.runner.forget_requests()
    for i in range(3):
        rig.add(f"r{i}", random_prompt(i, 30 + i), greedy(6))
    prompts = {name: request.prompt for name, request in rig.requests.items()}
    assert rig.generate() == {name: reference_greedy(reference, prompt, 6) for name, prompt in prompts.items()}


@pytest.mark.parametrize("seed", range(4))
def test_random_plans(path: Path, reference: Any, seed: int) -> None:
    """Arrivals, ends, preemptions, retries and chunks of any size: every request's tokens are transformers' own."""
    chance = random.Random(seed)
    rig = Rig(path)
    done: list[RigRequest] = []
    for step in range(40):
        if len(rig.requests) < 6 and chance.random() < 0.4:
            rig.add(f"r{step}", random_prompt(100 * seed + step, chance.randint(1, 25)), greedy(chance.randint(1, 9)))
        for name in [name for name, request in rig.requests.items() if request.known and chance.random() < 0.08]:
            rig.preempt(name)
        names = [name for name in rig.requests if chance.random() < 0.8]
        chance.shuffle(names)
        plan = rig.plan({name: chance.randint(1, rig.remaining(name)) for name in names}, say_next=chance.random() < 0.5)
        if chance.random() < 0.2:
            rig.runner.execute(plan)
        rig.update(plan, rig.runner.execute(plan))
        for name, request in list(rig.requests.items()):
            if len(request.output) >= (request.params.max_tokens or 0):
                done.append(request)
                rig.finish(name)
    assert len(done) > 3
    for request in done:
        assert request.output == reference_greedy(reference, request.prompt, len(request.output))
