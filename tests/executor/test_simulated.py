"""The simulation: the engine's own decisions, made-up tokens, and a clock that only the steps move."""

from __future__ import annotations

import msgspec
import pytest

from nbengine import LLM, SamplingParams
from nbengine.debug.debugger import Debugger
from nbengine.executor.simulated import SimulatedExecutor
from nbengine.observe.records import AnyRecord, encoder


def make_llm(**options: object) -> LLM:
    return LLM("simulated", executor_cls=SimulatedExecutor, **options)


def crowded() -> Debugger:
    """Four requests with a common prefix in a pool too small for them."""
    dbg = make_llm(block_size=4, num_gpu_blocks_override=12, max_model_len=40).debug()
    for i in range(4):
        dbg.add(f"abcdefgh{i}", max_tokens=16, temperature=0)
    return dbg


def told(records: list[AnyRecord]) -> list[bytes]:
    """Records, encoded, without what says when they were made, and that somebody went back and came again."""
    plain = [msgspec.structs.replace(record, created="") if hasattr(record, "created") else record for record in records]
    return [encoder.encode(record) for record in plain if getattr(record, "what", None) != "rewind"]


def test_text_in_letters_out() -> None:
    llm = make_llm()
    one, other = llm.generate(["The capital of France is", "é"], SamplingParams(temperature=0, max_tokens=9), use_tqdm=False)
    assert one.outputs[0].text.isalpha() and len(one.outputs[0].text) == 9 and one.outputs[0].finish_reason == "length"
    assert len(one.prompt_token_ids) == 24 and len(other.prompt_token_ids) == 2
    sampled = llm.generate("x", SamplingParams(n=3, max_tokens=8, seed=1, logprobs=1), use_tqdm=False)[0]
    assert len({answer.text for answer in sampled.outputs}) == 3 and sampled.outputs[0].cumulative_logprob == 0.0
    assert llm.get_tokenizer()("é").input_ids == [0xC3, 0xA9]


def test_a_step_costs_what_the_numbers_say() -> None:
    dbg = make_llm().debug()
    cost = SimulatedExecutor
    dbg.add([7] * 100, max_tokens=3)
    first, second = (dbg.step() for _ in range(2))
    assert first.executed.execute_s == pytest.approx(cost.base_s + 100 * cost.token_s)
    assert second.executed.execute_s == pytest.approx(cost.base_s + cost.token_s + 100 * cost.context_token_s)
    assert first.scheduled.schedule_s == 0.0 == first.updated.update_s
    request = dbg.view.requests["r1"]
    assert request.time_to_first_token == pytest.approx(first.executed.execute_s)
    assert request.inter_token_latency == pytest.approx(second.executed.execute_s)


def test_the_same_run_gives_the_same_records_to_the_last_byte() -> None:
    one, other = crowded(), crowded()
    one.run()
    other.run()
    assert told(one.recorder.records()) == told(other.recorder.records())
    assert any(step.scheduled.preempted for step in one.records)


def test_a_rewind_sets_the_clock_back_and_a_fork_goes_on_from_it() -> None:
    dbg = crowded()
    dbg.run(until=9)
    fork = dbg.fork()
    first = told(dbg.recorder.records())
    dbg.back(6)
    dbg.run(until=9)
    assert told(dbg.recorder.records()) == first
    for engine in (dbg, fork):
        engine.run()
    here, there = dbg.records[-1], fork.records[-1]
    assert here.updated.at == pytest.approx(there.updated.at + fork.recorder.started) and here.step == there.step


def test_a_token_edited_by_hand_is_gone_on_from() -> None:
    plain, edited = make_llm().debug(), make_llm().debug()
    for dbg in (plain, edited):
        dbg.add("hello", max_tokens=6)
        dbg.schedule()
        dbg.execute()
    edited.edit_token("r1", "Z")
    for dbg in (plain, edited):
        dbg.run()
    mine, its = (dbg.output("r1").outputs[0].text for dbg in (plain, edited))
    assert its[0] == "Z" and mine[1] != its[1]
