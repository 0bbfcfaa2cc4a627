"""Who was there before the first record has a lane too; and the file of a failed schedule opens at the step that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nbengine.debug import plots
from nbengine.debug.debugger import Debugger
from nbengine.debug.perfetto import chrome_trace
from nbengine.debug.trace import Trace
from nbengine.errors import StepError
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler
from tests.observe.engines import make_llm


def forked(steps: int) -> Debugger:
    dbg = make_llm(max_num_seqs=2).debug()
    for name in ("r0", "r1", "r2", "r3"):
        dbg.add("abc", name, max_tokens=20, ignore_eos=True)
    for _ in range(steps):
        dbg.step()
    return dbg.fork()


def slices_of(trace: Trace, request_id: str) -> list[dict[str, Any]]:
    events = chrome_trace(trace.records)["traceEvents"]
    return [event for event in events if event["ph"] == "X" and event["args"].get("request") == request_id]


@pytest.mark.parametrize("steps", [0, 5])
def test_a_request_that_waits_since_the_keyframe_has_a_lane(steps: int) -> None:
    fork = forked(steps)
    fork.step(3)
    waits = slices_of(fork.trace, "r3")
    assert [event["name"] for event in waits] == ["waiting"] and waits[0]["dur"] > 0
    assert waits[0]["tid"] not in {event["tid"] for event in slices_of(fork.trace, "r0")}
    assert [kind for _step, kind in plots.Run.of(fork.trace.records).states["r3"]] == ["waiting"] * 3
    fork.run()
    assert [event["name"] for event in slices_of(fork.trace, "r3")][:2] == ["waiting", "prefill"]


def test_one_that_was_preempted_before_the_keyframe_is_so_in_its_lane() -> None:
    dbg = make_llm(max_num_seqs=2).debug()
    for name in ("r0", "r1"):
        dbg.add("abc", name, max_tokens=20, ignore_eos=True)
    dbg.step(3)
    dbg.preempt("r1")
    fork = dbg.fork()
    fork.run()
    assert [event["name"] for event in slices_of(fork.trace, "r1")][:2] == ["preempted", "prefill again"]


def test_a_reset_ends_the_lanes_of_whom_it_drops() -> None:
    dbg = make_llm(max_num_seqs=2).debug()
    dbg.add("abc", "r0", max_tokens=20, ignore_eos=True)
    dbg.step(2)
    dbg.core.reset()
    dbg.add("abc", "r9", max_tokens=3, ignore_eos=True)
    dbg.run()
    assert slices_of(dbg.trace, "r9")[-1]["tid"] == slices_of(dbg.trace, "r0")[-1]["tid"] == 1


class Broken(Scheduler):
    def choose_victim(self) -> Request:
        return self.running[len(self.running)]


def test_the_file_of_a_failed_schedule_opens_at_the_step_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    llm = make_llm(num_blocks=11, scheduler_cls=Broken, max_num_batched_tokens=32, max_model_len=40)
    dbg = llm.debug()
    dbg._window.crash_dir = tmp_path
    dbg.add_group([8, 8, 8], max_tokens=12)
    with pytest.raises(StepError, match="schedule of step 5 failed"):
        dbg.run()
    assert dbg._window.crash_file is not None
    view = Trace.open(dbg._window.crash_file, strict=True).view
    assert view.headline().startswith("step 5, schedule failed (IndexError: list index out of range) · ")
    assert [(event.name, event.step) for event in view.events] == [("failed", 5)]
    assert [request.scheduled for request in view.requests.values()] == [0, 0, 0]
    assert view.headline() == dbg.view.headline()
    other = dbg.fork(scheduler_cls=None)
    other.step()
    assert "failed" not in other.view.headline()
