"""The gate: commands from any thread are carried out at a phase boundary, in the engine's thread."""

from __future__ import annotations

import _thread
import threading
import time

import pytest

from nbengine.observe.gate import Gate
from nbengine.observe.observer import Phase
from tests.observe.engines import make_core, request

WAIT = 10.0


def wait_for(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.002)


def test_a_running_gate_lets_pass_and_carries_out_commands() -> None:
    gate = Gate()
    where: list[str] = []
    future = gate.submit(lambda: where.append(threading.current_thread().name) or 7)
    assert not future.done()
    thread = threading.Thread(target=lambda: gate.at(Phase.SCHEDULE), name="the engine's")
    thread.start()
    thread.join(WAIT)
    assert future.result(0) == 7 and where == ["the engine's"]


def test_a_command_that_fails_tells_its_sender_and_the_engine_goes_on() -> None:
    gate = Gate()
    future = gate.submit(lambda: 1 / 0)
    after = gate.submit(lambda: "done")
    gate.at(Phase.EXECUTE)
    assert isinstance(future.exception(0), ZeroDivisionError) and after.result(0) == "done"


def test_pause_phase_step_and_resume_from_another_thread() -> None:
    core = make_core()
    core.gate = gate = Gate()
    core.add_request(request("a", list(range(10)), 30))
    made: list[str] = []
    gate.before = lambda: made.append(str(core.next_phase))
    gate.pause("to look")

    def life() -> None:
        while core.has_unfinished_requests():
            core.step()

    thread = threading.Thread(target=life)
    thread.start()
    wait_for(lambda: gate.has_waiter)
    assert made == [] and gate.reason == "to look"
    gate.grant(phases=1)
    wait_for(lambda: made == ["schedule"] and gate.has_waiter)
    gate.grant(steps=1)  # to the end of the step under way
    wait_for(lambda: made == ["schedule", "execute", "update"] and gate.has_waiter)
    gate.grant(steps=2)
    wait_for(lambda: core.step_count == 3 and gate.has_waiter)
    where: list[int] = []
    gate.submit(lambda: where.append(threading.get_ident()))
    wait_for(lambda: where == [thread.ident])
    assert core.step_count == 3
    gate.resume()
    thread.join(WAIT)
    assert not thread.is_alive() and not core.has_unfinished_requests()


def test_an_interrupt_ends_the_wait_and_the_engine_is_whole() -> None:
    core = make_core()
    core.gate = gate = Gate()
    core.add_request(request("a", list(range(10)), 3))
    gate.pause()
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        core.step()
    timer.join()
    assert core.next_phase is Phase.SCHEDULE and gate.paused and not gate.has_waiter
    core.check_invariants()
    gate.resume()
    while core.has_unfinished_requests():
        core.step()


def test_on_wait_is_told_once_a_wait() -> None:
    gate = Gate()
    told: list[tuple[Phase, str]] = []
    gate.on_wait = lambda phase, reason: told.append((phase, reason))
    gate.pause("r7 preempted")
    thread = threading.Thread(target=lambda: gate.at(Phase.EXECUTE))
    thread.start()
    wait_for(lambda: gate.has_waiter)
    gate.submit(lambda: None).result(WAIT)
    wait_for(lambda: gate.has_waiter)
    gate.resume()
    thread.join(WAIT)
    assert told == [(Phase.EXECUTE, "r7 preempted")]
