"""R113: stop before execute, look, change, go on; and stop at the first step in which something happens."""

from __future__ import annotations

import pytest

from nbengine.errors import PhaseError
from tests.observe.engines import make_llm


def test_the_first_preemption_stops_the_run() -> None:
    dbg = make_llm(num_blocks=12, max_model_len=40).debug()
    for i in range(4):
        dbg.add(f"abcdefgh{i}", max_tokens=16, temperature=0, ignore_eos=True)
    stop = dbg.run(until=lambda view: view.happened("preempted"))
    assert stop.phase == "execute"
    with_preemptions = [step.step for step in dbg.records if step.scheduled and step.scheduled.preempted]
    assert with_preemptions == [stop.step] == [dbg.view.step]


def test_stop_before_execute_look_change_and_go_on() -> None:
    dbg = make_llm().debug()
    for name in "ab":
        dbg.add("hello", name, max_tokens=4, temperature=0, ignore_eos=True)
    dbg.schedule()
    before = dbg.view.canonical()
    for wrong in (dbg.schedule, dbg.update):
        with pytest.raises(PhaseError, match="the next phase of step 0 is execute"):
            wrong()
    assert dbg.view.canonical() == before
    dbg.abort("b")
    dbg.execute()
    assert [out.request_id for out in dbg.update().outputs] == ["a"]
    dbg.run()
    assert dbg.view.requests["b"].finish_reason == "abort" and dbg.view.requests["a"].finish_reason == "length"
