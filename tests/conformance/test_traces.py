"""Every decision equals vLLM 0.25.1's own, in every field of every step; and the books add up after every phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreOutputs
from nbengine.scheduler.invariants import check_invariants
from nbengine.scheduler.scheduler import Scheduler
from nbengine.workload import schedule_trace
from nbengine.workload.schedule_trace import read_workloads, run_workload

DATA = Path(__file__).parent / "data"
COUNTS = {"core": 151, "repetition": 3, "lora": 4, "throttle": 5}


def pairs() -> list[Any]:
    params = []
    for kind in COUNTS:
        workloads, traces = (read_workloads(DATA / f"{kind}-{what}.jsonl.gz") for what in ("workloads", "traces"))
        params += [pytest.param(w, t, id=w["name"]) for w, t in zip(workloads, traces, strict=True)]
    return params


class CheckedScheduler(Scheduler):
    """Checks its own books after every phase."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        plan = super().schedule(throttle_prefills)
        check_invariants(self)
        return plan

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> EngineCoreOutputs:
        outputs = super().update_from_output(plan, output)
        check_invariants(self)
        return outputs


@pytest.mark.parametrize(("workload", "expected"), pairs())
def test_decisions_equal_vllms(workload: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_trace, "Scheduler", CheckedScheduler)
    trace = json.loads(json.dumps(run_workload(workload)))
    for step, expected_step in zip(trace["steps"], expected["steps"]):
        assert step == expected_step
    assert len(trace["steps"]) == len(expected["steps"])
    rest = {key: value for key, value in expected.items() if key not in ("steps", "source")}
    assert {key: value for key, value in trace.items() if key != "steps"} == rest


def test_no_trace_is_missing() -> None:
    assert {kind: len(read_workloads(DATA / f"{kind}-traces.jsonl.gz")) for kind in COUNTS} == COUNTS
