"""EngineCore: three phases in order, failures that leave it usable, and eyes that cannot break it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nbengine.config import EngineArgs
from nbengine.engine.core import EngineCore
from nbengine.errors import ConfigError, DuplicateRequestError, InvalidRequestError, PhaseError, StalledError, StepError
from nbengine.observe.observer import Phase
from nbengine.protocol import EngineCoreRequest, FinishReason
from nbengine.sampling_params import SamplingParams
from tests.scripted import EOS, ScriptedExecutor, scripted


def make_core(script: Any = None, *, executor: dict[str, Any] | None = None, **options: Any) -> EngineCore:
    small = {"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 32}
    config = EngineArgs(model="scripted", **{**small, **options}).create_engine_config(4096)
    return EngineCore(config, scripted(script, **(executor or {}))(config))


def request(request_id: str, prompt: str = "abc", **params: Any) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt.encode()),
        sampling_params=SamplingParams(**{"max_tokens": 4, "temperature": 0, **params}),
        arrival_time=0.0,
        eos_token_id=EOS,
    )


def run(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while core.has_work():
        for output in core.step().outputs:
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        core.check_invariants()
    return tokens


class TestPhases:
    def test_a_step_is_the_three_by_hand(self) -> None:
        by_hand, at_once = make_core({"a": "xy"}), make_core({"a": "xy"})
        by_hand.add_request(request("a"))
        at_once.add_request(request("a"))
        tokens = []
        while by_hand.has_work():
            by_hand.schedule()
            by_hand.execute()
            tokens += [token for output in by_hand.update().outputs for token in output.new_token_ids]
        assert tokens == run(at_once)["a"] == [*b"xy", EOS]
        assert by_hand.step_count == at_once.step_count

    def test_step_runs_what_is_left(self) -> None:
        core = make_core({"a": "xy"})
        core.add_request(request("a"))
        core.schedule()
        core.execute()
        assert core.step().outputs[0].new_token_ids == [ord("x")]
        assert (core.next_phase, core.step_count) == (Phase.SCHEDULE, 1)

    def test_the_last_finish_is_announced_by_one_more_plan(self) -> None:
        core = make_core({"a": ""})
        core.add_request(request("a"))
        core.step()
        assert not core.has_unfinished_requests() and core.has_work()
        core.step()
        assert not core.has_work()
        assert isinstance(core.executor, ScriptedExecutor)
        assert [plan.finished_req_ids for plan in core.executor.steps] == [[], ["a"]]

    def test_an_abort_between_phases_loses_the_token_only(self) -> None:
        core = make_core()
        core.add_request(request("a"))
        core.add_request(request("b"))
        core.schedule()
        assert core.abort_requests(["a", "nobody"]) == ["a"]
        core.execute()
        assert [output.request_id for output in core.update().outputs] == ["b"]
        core.check_invariants()

    def test_two_threads_get_an_error_not_a_wait(self) -> None:
        errors: list[BaseException] = []

        def before_step(executor: Any, plan: Any) -> None:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

        def other() -> None:
            try:
                core.schedule()
            except PhaseError as error:
                errors.append(error)

        core = make_core(executor={"before_step": before_step})
        core.add_request(request("a"))
        core.step()
        assert "another thread" in str(errors[0])
        assert core.next_phase is Phase.SCHEDULE

    def test_ids_and_sizes_are_checked_when_added(self) -> None:
        core = make_core()
        core.add_request(request("a"))
        with pytest.raises(DuplicateRequestError):
            core.add_request(request("a"))
        with pytest.raises(InvalidRequestError, match=r"50 KV blocks.*31"):
            core.add_request(request("b", "x" * 200))
        assert list(core.scheduler.requests) == ["a"]


class TestFailures:
    def test_a_failed_step_tells_where_the_scheduler_stood_and_can_be_run_again(self) -> None:
        failing = [True]

        def before_step(executor: Any, plan: Any) -> None:
            if plan.step == 1 and failing:
                raise RuntimeError("out of memory")

        core = make_core({"a": "xyz"}, executor={"before_step": before_step})
        core.add_request(request("a"))
        core.step()
        for _ in range(2):
            with pytest.raises(StepError, match=r"(?s)execute of step 1 failed: RuntimeError: out of memory.*a: running"):
                core.step()
            assert core.next_phase is Phase.EXECUTE
            core.check_invariants()
        failing.clear()
        assert run(core)["a"] == [*b"yz", EOS]

    def test_reset_drops_all_and_the_core_works_on(self) -> None:
        core = make_core({"a": "xy", "b": "z"}, executor={"before_step": _fail_for("a")})
        core.add_request(request("a"))
        with pytest.raises(StepError):
            core.step()
        assert core.reset() == ["a"]
        assert core.next_phase is Phase.SCHEDULE and not core.has_work()
        core.add_request(request("b"))
        assert run(core) == {"b": [*b"z", EOS]}

    def test_a_stall_is_told_after_the_first_step_that_moves_nothing(self) -> None:
        core = make_core({"a": "x"})
        core.add_request(request("a"))
        core.add_request(request("b"))
        core.config.scheduler.max_num_seqs = 0  # nobody can be admitted
        with pytest.raises(
            StalledError, match=r"(?s)2 requests wait:\na: max_num_seqs \(running 0, limit 0\)\nb: max_num_seqs"
        ):
            core.step()
        assert (core.step_count, core.scheduler.step) == (1, 1)
        core.check_invariants()
        core.config.scheduler.max_num_seqs = 8
        assert run(core)["a"] == [*b"x", EOS]

    def test_a_stall_that_a_hand_has_mended_meanwhile_is_none(self) -> None:
        core = make_core({"a": "x"})
        core.add_request(request("a"))
        core.config.scheduler.max_num_seqs = 0
        core.schedule()
        core.config.scheduler.max_num_seqs = 8
        assert core.step().outputs == []
        assert run(core)["a"] == [*b"x", EOS]

    def test_an_empty_step_that_only_announces_is_no_stall(self) -> None:
        core = make_core({"a": "", "b": ""})
        core.add_request(request("a"))
        core.step()
        core.schedule()  # announces a's end
        core.add_request(request("b"))  # arrives while that plan is under way
        core.step()
        assert run(core) == {"b": [EOS]}


def _fail_for(request_id: str) -> Callable[[Any, Any], None]:
    def before_step(executor: Any, plan: Any) -> None:
        if request_id in plan.num_scheduled_tokens:
            raise RuntimeError(f"no {request_id}")

    return before_step


class Recorder:
    """An observer that notes the events, and raises in one if asked to."""

    def __init__(self, fails_in: str = "") -> None:
        self.events: list[str] = []
        self.fails_in = fails_in

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def note(*facts: Any) -> None:
            self.events.append(name)
            if name == self.fails_in:
                raise ValueError("a bug in the observer")

        return note


class TestWindow:
    def test_the_observer_is_told_in_order(self) -> None:
        core = make_core({"a": ""})
        core.observer = recorder = Recorder()
        core.add_request(request("a"))
        core.step()
        core.abort_requests(["a"])  # has ended: nothing to tell
        core.reset_prefix_cache()
        assert recorder.events == ["on_added", "on_scheduled", "on_executed", "on_updated", "on_changed"]

    @pytest.mark.parametrize("event", ["on_added", "on_scheduled", "on_executed", "on_updated", "on_aborted"])
    def test_an_observer_that_raises_is_detached_and_the_engine_goes_on(self, event: str) -> None:
        core = make_core({"a": "xy", "b": "z"})
        core.observer = Recorder(fails_in=event)
        with pytest.warns(UserWarning, match="observer failed and was detached: ValueError"):
            core.add_request(request("a"))
            core.add_request(request("b"))
            core.step()
            core.abort_requests(["b"])
        assert core.observer is None
        assert run(core)["a"] == [*b"y", EOS]

    def test_the_gate_is_asked_before_every_phase(self) -> None:
        class Gate:
            def __init__(self) -> None:
                self.asked: list[Phase] = []

            def left(self) -> None:
                """Nothing to do."""

            def at(self, phase: Phase) -> None:
                self.asked.append(phase)

        core = make_core({"a": ""})
        core.gate = gate = Gate()
        core.add_request(request("a"))
        core.step()
        assert gate.asked == [Phase.SCHEDULE, Phase.EXECUTE, Phase.UPDATE]

    def test_a_failure_is_told(self) -> None:
        core = make_core(executor={"before_step": _fail_for("a")})
        core.observer = recorder = Recorder()
        core.add_request(request("a"))
        with pytest.raises(StepError):
            core.step()
        assert recorder.events[-1] == "on_failed"


class TestKVSetup:
    def test_the_blocks_come_from_memory(self) -> None:
        core = make_core(num_gpu_blocks_override=None, kv_cache_memory_bytes=40 * 1024)
        assert core.config.cache.num_blocks == 40
        core = make_core(num_gpu_blocks_override=None, max_num_seqs=2)  # no more than twice what all seats can use
        assert core.config.cache.num_blocks == 2 * 2 * 16 + 1
        core = make_core(num_gpu_blocks_override=None)
        assert core.config.cache.num_blocks == 512

    def test_too_small_a_pool_shrinks_max_model_len_and_says_so(self) -> None:
        with pytest.warns(UserWarning, match="max_model_len is now 20 tokens, not 64"):
            core = make_core(num_gpu_blocks_override=6)
        assert core.config.scheduler.max_model_len == core.config.model.max_model_len == 20

    def test_no_room_at_all_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="at least 2 blocks"):
            make_core(num_gpu_blocks_override=None, kv_cache_memory_bytes=1024)


def test_the_prefix_cache_is_reset_only_when_idle() -> None:
    core = make_core({"a": "xy"})
    core.add_request(request("a", "abcdefgh"))
    core.step()
    assert not core.reset_prefix_cache()
    run(core)
    assert core.reset_prefix_cache()


def test_a_stop_string_s_abort_has_its_reason() -> None:
    core = make_core({"a": "xyz"})
    core.add_request(request("a"))
    core.step()
    assert core.abort_requests(["a"], FinishReason.STOP) == ["a"]
    assert not core.has_unfinished_requests()
