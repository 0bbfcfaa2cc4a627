"""What a person changes by hand in the Lab (breakpoints, limits, requests, tokens) is a record and reaches the engine."""

from __future__ import annotations

from typing import Any

import pytest
from nbengine_widgets.source import CAPABILITIES

from nbengine.debug.commands import NAMES
from nbengine.debug.debugger import Debugger
from nbengine.debug.lab_breakpoints import Threshold
from nbengine.debug.lab_source import COMMANDS, Stream
from nbengine.observe.records import Changed, Keyframe, decoder
from nbengine.observe.view import EngineView
from tests.observe.engines import make_llm


def make(**options: Any) -> Debugger:
    dbg = make_llm(num_blocks=30, **options).debug()
    for i in range(3):
        dbg.add(f"hello {i}", max_tokens=30, temperature=0, ignore_eos=True)
    return dbg


def post(dbg: Debugger, name: str, **args: Any) -> str:
    """The sentence for the person, once the command has been carried out."""
    dbg.post({"name": name, "args": args})
    dbg.mover.gate.drain()
    return str(dbg._source.status()["message"])


def changes(dbg: Debugger) -> list[str]:
    return [record.what for record in dbg.recorder.records() if isinstance(record, Changed)]


def test_the_lab_knows_every_command() -> None:
    assert set(COMMANDS) == set(CAPABILITIES) == {*NAMES, "source"}


# -------------------------------------------------------------------------------------------------------- breakpoints


def test_a_breakpoint_with_condition_count_and_once() -> None:
    dbg = make()
    more = {"condition": ["free_blocks", "<", 12], "count": 2, "once": True}
    assert post(dbg, "break", action="add", event="executed", **more) == ""
    (told,) = dbg._source.status()["breakpoints"]
    assert told["text"] == "executed, if free blocks < 12, from time 2 on, once"
    assert {name: told[name] for name in ("event", *more)} == {"event": "executed", **more}
    stop = dbg.run()
    full = [step.step for step in dbg.records if step.scheduled and (step.scheduled.free_blocks or 0) < 12]
    assert stop.number == 1 and stop.step == full[1]
    assert dbg._source.status()["breakpoints"][0]["enabled"] is False


def test_a_breakpoint_is_edited_in_place() -> None:
    dbg = make()
    mine = dbg.break_when(lambda view: view.step == 4)
    post(dbg, "break", action="edit", number=mine.number, once=True)
    assert dbg.breakpoints[1].once and dbg.breakpoints[1].when is mine.when
    post(dbg, "break", action="add", event="finished", request="r1")
    post(dbg, "break", action="edit", number=2, event="preempted", request=None, count=3)
    assert dbg.breakpoints[2].describe() == "preempted, from time 3 on"
    assert "no event 'burst'" in post(dbg, "break", action="edit", number=2, event="burst")
    assert dbg.breakpoints[2].event == "preempted"
    assert "There is no breakpoint 9" in post(dbg, "break", action="edit", number=9, once=True)
    assert "not 'paint'" in post(dbg, "break", action="paint", number=2)


@pytest.mark.parametrize("condition", [["colour", "<", 3], ["free_blocks", "=", 3]])
def test_a_condition_that_is_none_is_refused(condition: list[Any]) -> None:
    dbg = make()
    assert "A condition compares" in post(dbg, "break", action="add", event="finished", condition=condition)
    assert "has no colour" in post(dbg, "break", action="add", event="finished", colour="red")
    assert len(dbg.breakpoints) == 0


def test_run_until_fewer_free_blocks_than_stops_below_and_not_at_the_number() -> None:
    dbg = make()
    dbg.step()
    free = dbg.view.free_blocks
    post(dbg, "run_until", what="free_blocks", value=free)
    stop = dbg.run()
    assert dbg.view.free_blocks == free - 1 or dbg.view.free_blocks < free
    assert stop.why == f"free blocks < {free}"
    before = [step.scheduled.free_blocks for step in dbg.records if step.scheduled][:-1]
    assert all(count >= free for count in before if count is not None)
    assert not Threshold("free_blocks", "<", dbg.view.free_blocks)(dbg.view)


# ------------------------------------------------------------------------------------------------------------ changes


def test_limits_and_policy() -> None:
    dbg = make()
    assert (
        post(dbg, "set", max_num_seqs=1, max_num_batched_tokens=8, long_prefill_token_threshold=4, policy="priority") == ""
    )
    config = dbg.core.config.scheduler
    assert (config.max_num_seqs, config.token_budget, config.long_prefill_token_threshold, config.policy) == (
        1,
        8,
        4,
        "priority",
    )
    dbg.step()
    assert dbg.view.running == ["r1"]
    assert "cannot be changed" in post(dbg, "set", block_size=3)
    assert "max_num_seqs" in post(dbg, "set", max_num_seqs=0)
    assert config.max_num_seqs == 1 and changes(dbg) == ["option"]


def test_requests_come_go_and_change_places() -> None:
    dbg = make(scheduling_policy="priority")
    assert post(dbg, "add", prompt="hi", max_tokens=3, priority=-1) == ""
    assert dbg.view.waiting[0] == "r4"
    assert post(dbg, "priority", request="r3", priority=-2) == ""
    assert dbg.view.waiting == ["r3", "r4", "r1", "r2"]
    dbg.step()
    assert post(dbg, "preempt", request="r1") == ""
    assert dbg.view.requests["r1"].status == "preempted"
    assert "Only a running request" in post(dbg, "preempt", request="r1")
    assert post(dbg, "abort", request="r1") == ""
    assert dbg.view.requests["r1"].finish_reason == "abort"
    assert "no live request 'r1'" in post(dbg, "priority", request="r1", priority=1)
    assert "no sampling parameter 'max_token'" in post(dbg, "add", prompt="hi", max_token=3)
    assert changes(dbg) == ["priority", "preempt"]


def test_the_next_token_is_edited_between_execute_and_update() -> None:
    dbg = make()
    assert "between execute and update" in post(dbg, "edit_token", request="r1", token="Z")
    dbg.schedule()
    dbg.execute()
    assert post(dbg, "edit_token", request="r1", token="Z") == ""
    assert "one is wanted" in post(dbg, "edit_token", request="r1", token="long")
    dbg.update()
    assert dbg.view.requests["r1"].output_token_ids == [ord("Z")]
    assert dbg.output("r1").outputs[0].text == "Z"


def test_the_prefix_cache_is_dropped() -> None:
    dbg = make()
    dbg.step()
    assert "running requests hold blocks" in post(dbg, "drop_prefixes")
    assert any(dbg.view.hashes)
    assert post(dbg, "drop_prefixes", preempt_running=True) == ""
    assert not any(dbg.view.hashes) and dbg.view.running == []
    dbg.core.check_invariants()


def test_a_late_viewer_learns_of_changed_options() -> None:
    dbg = make()
    dbg._source.stream = stream = Stream()
    dbg.recorder.subscribe(stream.push)
    dbg.set(max_num_batched_tokens=8)
    dbg.step()
    dbg.back()  # a keyframe
    _number, records = stream.keyframe()
    frame = decoder.decode(records[-1])
    assert isinstance(frame, Keyframe) and frame.options is not None and frame.options["token_budget"] == 8
    assert EngineView.from_keyframe(dbg.view.header, frame).limits.token_budget == 8


# ------------------------------------------------------------------------------------------------------ one count of steps


def test_after_a_reset_steps_are_counted_on() -> None:
    llm = make_llm(num_blocks=30)
    dbg = llm.debug()
    dbg.add("hello", max_tokens=5, temperature=0)
    dbg.step(2)
    llm.llm_engine.reset()
    dbg.add("again", max_tokens=2, temperature=0)
    plan = dbg.core.schedule()
    dbg.core.execute()
    outputs = dbg.core.update()
    assert plan.step == outputs.step == 2 and dbg.core.step_count == 3
    assert [step.step for step in dbg.records if step.updated] == [0, 1, 2]


def test_why_it_stands_is_told_as_long_as_it_stands_there() -> None:
    dbg = make()
    dbg.step(2)
    assert dbg.state() == ("idle", "2 steps done")
    dbg.schedule()
    assert dbg.state() == ("idle", "")
