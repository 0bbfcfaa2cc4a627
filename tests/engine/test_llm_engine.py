"""LLMEngine by hand: add, step, take, abort, look."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nbengine.config import EngineArgs
from nbengine.engine import interrupts
from nbengine.engine.core_client import EngineCoreClient, InprocClient
from nbengine.engine.llm_engine import LLMEngine
from nbengine.engine.stats import Counter, Gauge, Summary
from nbengine.errors import ConfigError, DuplicateRequestError, InvalidRequestError, NBEngineError
from nbengine.outputs import RequestOutput
from nbengine.sampling_params import RequestOutputKind, SamplingParams
from tests.scripted import ScriptedExecutor, SlowTokenizer, scripted

GREEDY = SamplingParams(temperature=0, max_tokens=8)
DELTA = SamplingParams(temperature=0, max_tokens=8, output_kind=RequestOutputKind.DELTA)


def make_engine(script: Any = None, *, executor: dict[str, Any] | None = None, **options: Any) -> LLMEngine:
    small = {"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 32}
    return LLMEngine.from_engine_args(
        EngineArgs(model="scripted", executor_cls=scripted(script, **(executor or {})), **{**small, **options})
    )


def run(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def text(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


class TestStepping:
    def test_deltas_add_up(self) -> None:
        engine = make_engine({"a": "Hi 🔥", "b": "yo"})
        engine.add_request("a", "x", DELTA)
        engine.add_request("b", "y", DELTA)
        outputs = run(engine)
        assert (text(outputs["a"]), text(outputs["b"])) == ("Hi 🔥", "yo")
        assert [output.finished for output in outputs["b"]] == [False, False, True]

    def test_a_step_with_nothing_to_do_does_nothing(self) -> None:
        engine = make_engine()
        assert engine.step() == []
        assert not engine.has_unfinished_requests()

    def test_a_stop_string_ends_the_request_in_the_core_too(self) -> None:
        engine = make_engine({"a": "one STOP two"})
        engine.add_request("a", "x", GREEDY.clone(stop=["STOP"], max_tokens=20))
        outputs = engine.step()
        while not outputs[-1].finished:
            outputs = engine.step()
        (last,) = outputs
        assert (last.outputs[0].text, last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("one ", "stop", "STOP")
        assert not engine.running() and core_of(engine).scheduler.kv.pool.num_free == 31

    def test_by_hand_and_by_step_come_to_the_same(self) -> None:
        by_hand, at_once = make_engine({"a": "Hi 🔥"}), make_engine({"a": "Hi 🔥"})
        for engine in (by_hand, at_once):
            engine.add_request("a", "x", DELTA)
        core, seen = core_of(by_hand), []
        while by_hand.has_unfinished_requests():
            core.schedule()
            core.execute()
            with interrupts.deferred():
                seen += by_hand.process_outputs(core.update())
        assert text(seen) == text(run(at_once)["a"]) == "Hi 🔥"
        (kept,) = by_hand.take_outputs()  # looked at, not taken
        assert kept.outputs[0].text == "Hi 🔥"

    def test_a_slow_tokenizer_will_do(self) -> None:
        engine = make_engine({"a": "é🔥"}, executor={"make_tokenizer": SlowTokenizer})
        engine.add_request("a", "é", DELTA)
        assert text(run(engine)["a"]) == "é🔥"

    def test_token_ids_in_and_out_without_a_tokenizer(self) -> None:
        engine = make_engine({"a": "xy"}, skip_tokenizer_init=True)
        engine.add_request("a", [1, 2, 3], GREEDY)
        last = run(engine)["a"][-1].outputs[0]
        assert (last.text, last.token_ids, last.finish_reason) == ("", [*b"xy", 256], "stop")
        with pytest.raises(NBEngineError, match="no tokenizer"):
            engine.get_tokenizer()


class TestRequests:
    def test_a_refused_request_changes_nothing(self) -> None:
        engine = make_engine()
        engine.add_request("a", "x", GREEDY)
        with pytest.raises(DuplicateRequestError):
            engine.add_request("a", "x", GREEDY)
        with pytest.raises(DuplicateRequestError):
            engine.add_request("b", "x", GREEDY.clone(n=2)) if engine.add_request("1_b", "x", GREEDY) else None
        with pytest.raises(InvalidRequestError):
            engine.add_request("c", "", GREEDY)
        assert engine.waiting() == ["a", "1_b"]
        assert engine.get_num_unfinished_requests() == 2

    def test_an_id_is_free_again_when_its_request_has_ended(self) -> None:
        engine = make_engine({"a": "x"})
        for _ in range(2):
            engine.add_request("a", "x", DELTA)
            assert text(run(engine)["a"]) == "x"

    def test_numbers_that_are_taken_are_passed_over(self) -> None:
        engine = make_engine()
        engine.add_request("1", "x", GREEDY)
        assert [engine.new_request_id() for _ in range(3)] == ["0", "2", "3"]

    def test_an_abort_leaves_one_last_output(self) -> None:
        engine = make_engine({"a": "xyz"})
        engine.add_request("a", "x", DELTA)
        engine.step()
        engine.abort_request(["a", "nobody"])
        engine.abort_request("a")
        (last,) = engine.step()
        assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
        assert not engine.has_unfinished_requests()

    def test_everything_can_be_dropped(self) -> None:
        engine = make_engine()
        for name in "abc":
            engine.add_request(name, "x", GREEDY)
        engine.step()
        assert engine.reset() == ["a", "b", "c"]
        assert not engine.running() and not engine.waiting() and not engine.partial_outputs()
        engine.add_request("a", "x", GREEDY)
        assert run(engine)["a"][-1].finished

    def test_rewound_requests_stream_on_from_there(self) -> None:
        engine = make_engine({"a": "abcdef"})
        engine.add_request("a", "x", DELTA)
        before = text([output for _ in range(2) for output in engine.step()])
        core, mark = core_of(engine), engine.output_processor.mark()
        saved = core.scheduler.snapshot()
        lost = text([output for _ in range(2) for output in engine.step()])
        core.scheduler.restore(saved)
        engine.output_processor.restore(mark)
        core.executor.requests["a"].token_ids[:] = [*b"x", *b"ab"]
        assert (before, lost, before + text(run(engine)["a"])) == ("ab", "cd", "abcdef")


class TestLooking:
    def test_the_prefix_cache_is_kept_while_busy_and_the_log_says_why(self, caplog: pytest.LogCaptureFixture) -> None:
        engine = make_engine({"a": "x"})
        engine.add_request("a", "x" * 8, GREEDY)
        engine.step()
        with caplog.at_level(logging.WARNING, "nbengine"):
            assert not engine.reset_prefix_cache()
        assert "held by running requests: a" in caplog.text
        run(engine)
        assert engine.reset_prefix_cache()

    def test_metrics_count_this_engine_alone(self) -> None:
        engine, other = make_engine({"a": "xy"}), make_engine()
        engine.add_request("a", "x" * 9, GREEDY)
        engine.add_request("b", "y", GREEDY.clone(n=2))
        run(engine)
        engine.add_request("c", "x" * 9, GREEDY)
        engine.step()
        values = {(metric.name, *metric.labels.values()): metric for metric in engine.get_metrics()}
        assert values["vllm:num_requests_running",] == Gauge(name="vllm:num_requests_running", value=1.0)
        assert values["vllm:prompt_tokens",] == Counter(name="vllm:prompt_tokens", value=10)
        assert values["vllm:generation_tokens",] == Counter(name="vllm:generation_tokens", value=3 + 16 + 1)
        assert values["vllm:prefix_cache_hits",] == Counter(name="vllm:prefix_cache_hits", value=8)
        assert values["vllm:request_success", "length"] == Counter(
            name="vllm:request_success", labels={"finished_reason": "length"}, value=2
        )
        times = values["vllm:time_to_first_token_seconds",]
        assert isinstance(times, Summary) and times.count == 2 and times.sum > 0
        assert all(metric.value == 0 for metric in other.get_metrics() if isinstance(metric, Counter | Gauge))

    def test_the_model_s_own_sampling_defaults_are_the_defaults(self) -> None:
        facts = ScriptedExecutor.facts
        changed = type(facts)(max_len=64, vocab_size=260, sampling_defaults={"temperature": 0.25, "top_k": 7})
        engine = make_engine({"a": "x"}, executor={"facts": changed})
        assert engine.default_sampling_params() == SamplingParams(temperature=0.25, top_k=7)
        engine.add_request("a", "x")
        engine.step()
        assert core_of(engine).executor.requests["a"].sampling_params.top_k == 7


class TestMaking:
    def test_a_core_elsewhere_is_not_there_yet(self) -> None:
        config = EngineArgs(max_model_len=64, num_gpu_blocks_override=32).create_engine_config(64)
        with pytest.raises(ConfigError, match="process of its own"):
            EngineCoreClient.make_client(config, scripted()(config), multiprocess_mode=True)

    def test_what_is_no_executor_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="executor_cls"):
            LLMEngine.from_engine_args(EngineArgs(executor_cls=dict))
        with pytest.raises(ConfigError, match=r"nowhere\.Executor"):
            LLMEngine.from_engine_args(EngineArgs(executor_cls="nowhere.Executor"))

    def test_an_executor_can_be_named(self) -> None:
        engine = LLMEngine.from_engine_args(
            EngineArgs(executor_cls="tests.scripted.ScriptedExecutor", max_model_len=64, num_gpu_blocks_override=32)
        )
        engine.add_request("a", "x", GREEDY)
        assert run(engine)["a"][-1].outputs[0].finish_reason == "length"

    def test_it_may_be_shut_down_twice(self) -> None:
        engine = make_engine()
        engine.shutdown()
        engine.shutdown()
        assert core_of(engine).executor.is_shut_down


def core_of(engine: LLMEngine) -> Any:
    assert isinstance(engine.engine_core, InprocClient)
    return engine.engine_core.core
