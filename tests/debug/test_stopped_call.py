"""A breakpoint inside a blocking call, where nobody could let the call go on: it ends there, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from nbengine import SamplingParams
from nbengine.debug import debugger
from nbengine.errors import StoppedError
from nbengine.observe.records import Updated
from tests.observe.engines import make_llm

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def test_it_says_where_and_why_and_how_to_go_on() -> None:
    wanted = make_llm().generate(["one", "two"], PARAMS, use_tqdm=False)
    llm = make_llm()
    dbg = llm.debug()
    dbg.break_on(step=3)
    with pytest.raises(StoppedError) as caught:
        llm.generate(["one", "two"], PARAMS, use_tqdm=False)
    text = str(caught.value)
    assert text.startswith("Stopped at step 3, before schedule: breakpoint 1: step 3, before schedule. Everything")
    assert "llm.wait_for_completion()" in text and len(text.splitlines()) == 1
    assert dbg.state() == ("idle", "breakpoint 1: step 3, before schedule") and dbg.view.running == ["0", "1"]
    dbg.step()
    assert dbg.core.step_count == 4
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in wanted]


def test_a_pause_before_the_call_is_no_trap_either() -> None:
    llm = make_llm()
    llm.debug().pause()
    with pytest.raises(StoppedError, match="before schedule: paused by hand"):
        llm.generate("one", PARAMS, use_tqdm=False)
    assert len(llm.wait_for_completion(use_tqdm=False)) == 1


def test_a_breakpoint_at_the_very_end_stops_nobody() -> None:
    llm = make_llm()
    dbg = llm.debug()
    point = dbg.break_on("finished", request="0")
    for _ in range(2):
        assert len(llm.generate("one", PARAMS, use_tqdm=False)) == 1
    assert point.hits == 1 and dbg.state() == ("idle", "")
    dbg.break_on("finished", request="2")
    llm.generate("one", PARAMS, use_tqdm=False)
    assert dbg.state() == ("idle", "breakpoint 2: 2 finished: length")


@pytest.mark.parametrize("where", ["in that step", "at its end"])
def test_a_breakpoint_in_the_step_that_a_stop_string_ends_stops_nobody(where: str) -> None:
    """The core is done with such a step before the front sees the string: at the gate the request still lives."""
    llm = make_llm()
    dbg = llm.debug()
    at_once = SamplingParams(max_tokens=12, ignore_eos=True, stop=["\ufffd", *map(chr, range(128))])
    if where == "at its end":
        point = dbg.break_on("finished")
    else:
        point = dbg.break_when(lambda view: isinstance(view.last_record, Updated) and view.step % 2 == 0)
    for call in (1, 2, 3):
        (output,) = llm.generate("one", at_once, use_tqdm=False)
        assert output.outputs[0].finish_reason == "stop" and dbg.core.step_count == 2 * call
    assert point.hits == 3 and not dbg.mover.gate.paused


def test_whoever_pauses_from_another_thread_is_waited_for() -> None:
    llm = make_llm()
    dbg = llm.debug()
    dbg.break_when(lambda view: time.sleep(0.002))  # holds never, but lasts

    def person() -> None:
        dbg.pause()
        end = time.monotonic() + 10
        while not dbg.mover.gate.has_waiter and time.monotonic() < end:
            time.sleep(0.002)
        dbg.resume()

    thread = threading.Timer(0.03, person)
    thread.start()
    assert len(llm.generate("one", SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)) == 1
    thread.join(10)


def test_in_another_thread_the_call_waits_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    llm = make_llm()
    dbg = llm.debug()
    dbg.break_on(step=2)
    made: list[object] = []
    thread = threading.Thread(target=lambda: made.extend(llm.generate("one", PARAMS, use_tqdm=False)))
    thread.start()
    end = time.monotonic() + 10
    while not dbg.mover.gate.has_waiter and time.monotonic() < end:
        time.sleep(0.002)
    assert "stands at step 2, before schedule: breakpoint 1" in caplog.text and not made
    dbg.resume()
    thread.join(10)
    assert len(made) == 1


def test_a_lab_just_shown_has_time_to_come_to_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugger, "LAB_WAKES_S", 0.4)
    llm = make_llm()
    dbg = llm.debug()
    control = SimpleNamespace(answered_off_main=False)
    dbg._lab = SimpleNamespace(control=control, status_changed=lambda: None)
    dbg._lab_made_at = time.monotonic()
    dbg.break_on(step=2, once=True)
    began = time.monotonic()
    with pytest.raises(StoppedError):  # it never does: no browser
        llm.generate("one", PARAMS, use_tqdm=False)
    assert 0.3 < time.monotonic() - began < 5
    llm.wait_for_completion(use_tqdm=False)

    dbg._lab_made_at = time.monotonic() + 10
    dbg.break_on(step=dbg.core.step_count + 2, once=True)

    def person() -> None:
        control.answered_off_main = True
        end = time.monotonic() + 10
        while not dbg.mover.gate.has_waiter and time.monotonic() < end:
            time.sleep(0.002)
        dbg.post({"name": "run", "args": {}, "id": 1})

    threading.Timer(0.2, person).start()
    assert len(llm.generate("one", PARAMS, use_tqdm=False)) == 1


def test_a_script_ends_with_the_sentence() -> None:
    script = (
        "from nbengine import LLM; from nbengine.executor.simulated import SimulatedExecutor as S\n"
        "llm = LLM('simulated', executor_cls=S); dbg = llm.debug(); dbg.break_on(step=9); llm.generate('hello')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "nbengine.errors.StoppedError: Stopped at step 9, before schedule:" in done.stderr
