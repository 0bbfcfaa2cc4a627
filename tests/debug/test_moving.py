"""Who moves the engine: a cell, a task on the loop, the Lab's commands from another thread, a blocking generate."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from nbengine import SamplingParams
from nbengine.debug.debugger import Debugger
from nbengine.debug.lab_source import TraceSource
from nbengine.errors import PhaseError, StepError
from nbengine.observe.records import Added, Changed, Header, Keyframe, Scheduled, decoder
from nbengine.observe.view import EngineView
from tests.observe.engines import make_llm

WAIT = 10.0


def make() -> Debugger:
    return make_llm(num_blocks=30).debug()


def add(dbg: Debugger, count: int = 2, tokens: int = 30) -> None:
    for i in range(count):
        dbg.add(f"hello {i}", max_tokens=tokens, temperature=0, ignore_eos=True)


def post(dbg: Debugger, name: str, **args: Any) -> None:
    """As the Lab does: from a thread that is not the engine's."""
    thread = threading.Thread(target=lambda: dbg._source.post({"name": name, "args": args, "id": 1}))
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.002)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


# ------------------------------------------------------------------------------------------------------ on the event loop


def test_arun_gives_the_loop_its_turn_and_pause_reaches_it() -> None:
    async def life() -> None:
        dbg = make()
        add(dbg)
        seen: list[int] = []

        async def watch() -> None:
            while dbg.core.step_count < 5:
                seen.append(dbg.core.step_count)
                await asyncio.sleep(0)
            dbg.pause("seen enough")

        watcher = asyncio.create_task(watch())
        stop = await dbg.arun()
        await watcher
        assert stop.why == "seen enough" and 5 <= dbg.core.step_count < 8 and len(set(seen)) >= 4
        stop = await dbg.arun("finished")
        assert "finished" in stop.why
        assert (await dbg.arun()).why == "nothing left to do"

    asyncio.run(life())


def test_a_long_forward_pass_runs_in_a_thread_and_nobody_else_may_step() -> None:
    async def life() -> None:
        dbg = make()
        add(dbg, tokens=3)
        slow = dbg.core.executor.execute_model

        def slowly(plan: Any) -> Any:
            time.sleep(0.1)
            return slow(plan)

        dbg.core.executor.execute_model = slowly
        task = asyncio.create_task(dbg.arun())
        await until(lambda: dbg.mover._moving.locked())
        with pytest.raises(PhaseError, match="The engine is stepping"):
            dbg.abort("r1")
        with pytest.raises(PhaseError, match="The engine is running already"):
            dbg.step()
        with pytest.raises(PhaseError, match="The engine is running already"):
            await dbg.arun()
        await task
        threads = {step.executed.thread for step in dbg.records if step.executed}
        assert threads - {"MainThread"}

    asyncio.run(life())


def test_play_pause_step_back_and_on_by_the_labs_commands() -> None:
    async def life() -> None:
        dbg = make()
        add(dbg, tokens=60)
        dbg.set(max_num_seqs=4)
        dbg.play()
        await until(lambda: dbg.core.step_count > 3)
        assert dbg.state()[0] == "running"
        post(dbg, "pause")
        await asyncio.sleep(0.05)
        here = dbg.core.step_count
        assert dbg.state() == ("paused", "paused by hand")
        await asyncio.sleep(0.05)
        assert dbg.core.step_count == here
        dbg.step()  # a cell may still step while the task waits
        await asyncio.sleep(0.05)
        assert dbg.core.step_count == here + (dbg.core.next_phase == "schedule") * 1 and dbg.state()[0] == "paused"
        here = dbg.core.step_count - 1
        post(dbg, "phase")
        await until(lambda: dbg.core.next_phase == "execute")
        post(dbg, "step", count=2)
        await until(lambda: dbg.core.step_count == here + 3 and dbg.core.next_phase == "schedule")
        await asyncio.sleep(0.05)
        assert dbg.core.step_count == here + 3
        post(dbg, "back", steps=2)
        await until(lambda: dbg.core.step_count == here + 1)
        post(dbg, "goto", step=1)
        await until(lambda: dbg.core.step_count == 1)
        post(dbg, "run")
        await until(lambda: not dbg.core.has_unfinished_requests())
        assert len(dbg.output("r1").outputs[0].token_ids) > 40
        dbg.detach()

    asyncio.run(life())


def test_commands_without_a_task_start_one_or_do_it_on_the_loop() -> None:
    async def life() -> None:
        dbg = make()
        add(dbg)
        post(dbg, "step", count=3)
        await until(lambda: dbg.core.step_count == 3)
        assert not dbg.mover.is_playing
        post(dbg, "phase")
        await until(lambda: dbg.core.next_phase == "execute")
        post(dbg, "run_until", what="step", value=9)
        await until(lambda: dbg.state()[0] == "paused")
        assert dbg.core.step_count == 9 and "step 9" in dbg.state()[1]
        post(dbg, "run_until", what="free_blocks", value=20)
        await until(lambda: dbg.view.free_blocks <= 20 and dbg.state()[0] == "paused")
        post(dbg, "run")
        await until(lambda: not dbg.core.has_unfinished_requests())
        dbg.detach()

    asyncio.run(life())


def test_requests_that_come_while_it_plays_are_run() -> None:
    async def life() -> None:
        dbg = make()
        dbg.play()
        await asyncio.sleep(0.01)
        add(dbg, tokens=3)
        await until(lambda: len(dbg.view.finished) == 2)
        dbg.detach()
        await asyncio.sleep(0)
        assert not dbg.mover.is_playing

    asyncio.run(life())


def test_a_failure_while_it_plays_pauses_there(caplog: pytest.LogCaptureFixture) -> None:
    async def life() -> None:
        dbg = make()
        add(dbg)
        dbg.core.executor.fail = True
        dbg.play()
        await until(lambda: dbg.mover.error is not None)
        assert dbg.state()[0] == "failed" and isinstance(dbg.mover.error, StepError)
        dbg.core.executor.fail = False
        post(dbg, "run")
        await until(lambda: not dbg.core.has_unfinished_requests())
        dbg.detach()

    asyncio.run(life())
    assert "A step failed" in caplog.text


def test_play_needs_a_loop() -> None:
    with pytest.raises(PhaseError, match="needs a running event loop"):
        make().play()


# ------------------------------------------------------------------------------------------------ inside a blocking call


def test_generate_can_be_paused_stepped_and_continued() -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    wanted = make_llm(num_blocks=30).generate(["one", "two"], params, use_tqdm=False)
    dbg = make()
    dbg.break_on(step=3)
    dbg._window.has_buttons = lambda: True  # as a Lab's that has answered
    told: list[Any] = []

    def person() -> None:
        wait_for(lambda: dbg.mover.gate.has_waiter)
        told.append((dbg.core.step_count, dbg.state()))
        dbg._source.post({"name": "step", "args": {"count": 2}})
        wait_for(lambda: dbg.core.step_count == 5 and dbg.mover.gate.has_waiter)
        dbg._source.post({"name": "phase"})
        wait_for(lambda: dbg.core.next_phase == "execute" and dbg.mover.gate.has_waiter)
        dbg._source.post({"name": "back", "args": {"steps": 3}})
        wait_for(lambda: dbg.core.step_count == 3 and dbg.mover.gate.has_waiter)
        dbg.breakpoints.clear()
        dbg._source.post({"name": "run"})

    thread = threading.Thread(target=person)
    thread.start()
    outputs = dbg.llm.generate(["one", "two"], params, use_tqdm=False)
    thread.join(WAIT)
    assert told[0][0] == 3 and told[0][1][0] == "paused" and "breakpoint 1: step 3" in told[0][1][1]
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in wanted]


# -------------------------------------------------------------------------------------------------------------- the source


def test_the_source_gives_records_by_number_and_a_keyframe() -> None:
    dbg = make()
    source = dbg._source
    heard: list[tuple[int, bytes]] = []
    end = source.subscribe(lambda number, data: heard.append((number, data)))
    add(dbg)
    dbg.run(until=70)
    assert [number for number, _data in heard] == list(range(1, source.num_records()))
    everything = source.records_since(0)
    assert everything is not None and everything[0] == source.header()
    assert EngineView.fold([decoder.decode(data) for data in everything]).canonical() == dbg.view.canonical()
    number, start = source.keyframe()
    kinds = [type(decoder.decode(data)) for data in start]
    assert kinds[0] is Header and (kinds[-1] is Keyframe or number == 1)
    rest = source.records_since(number)
    assert rest is not None
    assert EngineView.fold([decoder.decode(data) for data in start + rest]).canonical() == dbg.view.canonical()
    end()
    before = len(heard)
    dbg.step()
    assert len(heard) == before


def test_the_stream_is_bounded() -> None:
    dbg = make()
    dbg._source.stream._limit_bytes = 4000
    add(dbg)
    dbg.run()
    assert dbg._source.records_since(0) is None
    number = dbg._source.num_records() - 2
    assert len(dbg._source.records_since(number) or []) == 2


def test_status_breakpoints_and_refused_commands() -> None:
    dbg = make()
    source = dbg._source
    add(dbg)
    assert source.status()["state"] == "idle"
    post(dbg, "break", action="add", event="finished", request="r1")
    (told,) = source.status()["breakpoints"]
    assert (told["number"], told["text"], told["enabled"], told["hits"]) == (1, "finished, request r1", True, 0)
    post(dbg, "break", action="disable", number=1)
    assert source.status()["breakpoints"][0]["enabled"] is False
    post(dbg, "break", action="remove", number=7)
    assert "no breakpoint 7" in source.status()["message"]
    post(dbg, "break", action="add", event="explosion")
    assert "no event 'explosion'" in source.status()["message"]
    post(dbg, "dance")
    assert "no command 'dance'" in source.status()["message"]
    dbg.run()
    post(dbg, "goto", step=12345)
    dbg.mover.gate.drain()
    assert "Step 12345 has not happened yet" in source.status()["message"]
    assert source.status()["tokens_per_s"] > 0
    dbg.detach()
    assert source.status()["state"] == "closed"


def test_capabilities_and_source_lines() -> None:
    dbg = make()
    assert {"back", "goto", "run", "pause"} <= set(dbg._source.capabilities())
    assert "back" not in Debugger(make_llm(), undo=False)._source.capabilities()
    add(dbg)
    dbg.step()
    decision = dbg.view.decisions[0]
    found = dbg._source.source_lines(decision.file, decision.line)
    assert found is not None and found["first_line"] <= decision.line < found["first_line"] + len(found["lines"])
    assert dbg._source.source_lines("/etc/passwd", 1) is None
    assert dbg._source.source_lines("", 10**6) is None


def test_prompts_texts_and_params_are_told() -> None:
    dbg = make()
    dbg.add("hé", max_tokens=4, temperature=0)
    dbg.run()
    (added,) = (record for record in dbg.trace.records if isinstance(record, Added))
    assert added.prompt == "hé" and added.params == {"temperature": 0.0, "max_tokens": 4} and added.max_tokens == 4
    assert dbg.view.texts[ord("h")] == "h" and dbg.view.texts["é".encode()[0]] == "\\xc3"


def test_a_trace_plays() -> None:
    dbg = make()
    add(dbg)
    dbg.run()
    source = TraceSource(dbg.trace)
    assert source.capabilities() == ["source"] and source.status()["state"] == "closed"
    records = source.records_since(0)
    assert records is not None and len(records) == source.num_records()
    assert "data:image/png;base64," in source.static_bundle()["text/html"]


def test_a_listener_that_raises_is_dropped_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    dbg = make()

    def broken(record: object, data: bytes) -> None:
        if isinstance(record, Scheduled):
            raise ValueError("oh")

    dbg._window.recorder.subscribe(broken)
    add(dbg)
    dbg.run()
    assert len(dbg.view.finished) == 2 and caplog.text.count("was dropped") == 1
    assert dbg.core.observer is dbg._window.recorder


def test_a_rewind_is_told_to_listeners_as_a_change_and_a_keyframe() -> None:
    dbg = make()
    add(dbg)
    dbg.run(until=5)
    heard: list[object] = []
    dbg._window.recorder.subscribe(lambda record, data: heard.append(record))
    dbg.back(2)
    told, frame = heard
    assert isinstance(told, Changed) and told.what == "rewind" and told.values == {"from_step": 5, "to_step": 3}
    assert isinstance(frame, Keyframe) and frame.step == 3
