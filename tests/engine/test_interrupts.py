"""Ctrl-C never tears the books: real signals, at every line of a generate call."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from nbengine import LLM, SamplingParams
from nbengine.engine import interrupts
from nbengine.engine.core_client import InprocClient
from nbengine.engine.outbox import Outbox
from tests.scripted import scripted_llm


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def handler_is_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


class TestDeferring:
    def test_it_is_raised_when_the_block_is_done(self) -> None:
        done = []
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            ctrl_c()
            done.append("all of it")
        assert done

    def test_many_are_one(self) -> None:
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            ctrl_c()
            ctrl_c()

    def test_an_inner_block_adds_nothing(self) -> None:
        done = []
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            with interrupts.deferred():
                ctrl_c()
            done.append("still inside")
        assert done

    def test_allowed_lets_through_what_arrived_before(self) -> None:
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            ctrl_c()
            with interrupts.allowed():
                pytest.fail("it should not come to this")

    def test_allowed_lets_through_at_once(self) -> None:
        with pytest.raises(KeyboardInterrupt), interrupts.deferred(), interrupts.allowed():
            ctrl_c()
            pytest.fail("it should not come to this")

    def test_behind_allowed_they_wait_again(self) -> None:
        done = []
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            with interrupts.allowed():
                done.append(1)
            ctrl_c()
            done.append(2)
        assert done == [1, 2]

    def test_a_deferred_block_within_allowed_waits(self) -> None:
        done = []
        with pytest.raises(KeyboardInterrupt), interrupts.deferred(), interrupts.allowed():
            with interrupts.deferred():
                ctrl_c()
                done.append("the inner block")
            done.append("never")
        assert done == ["the inner block"]

    def test_an_error_of_the_block_comes_along(self) -> None:
        with pytest.raises(KeyboardInterrupt) as caught, interrupts.deferred():
            ctrl_c()
            raise ValueError("inner")
        assert isinstance(caught.value.__context__, ValueError)

    def test_the_handler_that_was_there_gets_it(self) -> None:
        got: list[int] = []
        before = signal.signal(signal.SIGINT, lambda signum, frame: got.append(signum))
        try:
            with interrupts.deferred():
                ctrl_c()
                assert not got
            assert got == [signal.SIGINT]
        finally:
            signal.signal(signal.SIGINT, before)

    def test_an_ignored_signal_stays_ignored(self) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with interrupts.deferred():
                ctrl_c()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGINT, before)

    def test_other_threads_are_left_alone(self) -> None:
        done: list[bool] = []

        def work() -> None:
            with interrupts.deferred(), interrupts.allowed():
                done.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert done == [True]


PROMPTS = ["abc", "defgh", "ijk"]
SCRIPT = {"0": "Hello", "1": "🔥!", "2": ["wor", "ld", "STOP", "never"]}
PARAMS = SamplingParams(max_tokens=8, stop=["STOP"])
WANTED = ["Hello", "🔥!", "world"]


def core_of(llm: LLM) -> Any:
    client = llm.llm_engine.engine_core
    assert isinstance(client, InprocClient)
    return client.core


def finish(llm: LLM) -> list[str]:
    """What a person does after an interrupt."""
    core_of(llm).check_invariants()
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert not llm.running() and not llm.waiting()
    core_of(llm).check_invariants()
    return [output.outputs[0].text for output in outputs]


class TestGenerate:
    @pytest.mark.parametrize("step", range(5))
    def test_in_the_model_the_step_can_be_run_again(self, step: int) -> None:
        interrupted = []

        def before_step(executor: Any, plan: Any) -> None:
            if plan.step == step and not interrupted:
                interrupted.append(plan)
                ctrl_c()

        llm = scripted_llm(SCRIPT, executor={"before_step": before_step})
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert core_of(llm).next_phase == "execute"
        assert finish(llm) == WANTED

    def test_a_raised_interrupt_is_as_good_as_a_signal(self) -> None:
        def before_step(executor: Any, plan: Any) -> None:
            if plan.step == 2 and not executor.steps[2:]:
                executor.steps.append(plan)
                raise KeyboardInterrupt

        llm = scripted_llm(SCRIPT, executor={"before_step": before_step})
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert finish(llm) == WANTED

    def test_what_was_running_can_be_aborted(self) -> None:
        def before_step(executor: Any, plan: Any) -> None:
            if plan.step == 2:
                ctrl_c()

        llm = scripted_llm(SCRIPT, executor={"before_step": before_step})
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output.outputs[0].text for output in llm.partial_outputs()] == ["He", "", "world"]
        assert llm.abort_all() == ["0", "1", "2"]
        assert finish(llm) == ["He", "\ufffd", "world"]
        assert core_of(llm).scheduler.kv.pool.num_free == 31

    def test_at_any_line_nothing_is_lost_or_torn(self) -> None:
        """A signal at every 5th line that the engine runs; whatever line it is, going on gives the same answers."""
        position, hits = 0, 0
        while True:
            llm = scripted_llm(SCRIPT)
            interrupter = _Interrupter(position)
            try:
                with interrupter:
                    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
            except KeyboardInterrupt:
                hits += 1
                texts = finish(llm)
                assert texts == WANTED or texts == [], f"at line event {position}: {interrupter.where}"
                assert texts or not interrupter.added, f"lost at line event {position}: {interrupter.where}"
            else:
                assert [output.outputs[0].text for output in outputs] == WANTED
                if not interrupter.fired:
                    break
            position += 5
        assert hits > 100


class _Interrupter:
    """Sends the signal at the `position`th line that is run within nbengine, up to where the outputs are taken."""

    def __init__(self, position: int) -> None:
        self.left = position
        self.fired = self.added = False
        self.where = ""

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if self.fired or "nbengine" not in frame.f_code.co_filename or "interrupts" in frame.f_code.co_filename:
            return None
        if frame.f_code is Outbox.take.__code__:
            sys.settrace(None)
            return None
        if event == "call" and frame.f_code.co_name == "_run":
            self.added = True
        if event == "line" and self.left >= 0:
            self.left -= 1
            if self.left < 0:
                self.fired = True
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                ctrl_c()
                return None
        return self._trace
