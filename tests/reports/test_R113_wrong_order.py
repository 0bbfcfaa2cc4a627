"""R113: the phases called out of order give an error that names the next phase, and change nothing. (Breakpoints and
`run(until=...)` are tested beside the debugger.)"""

from __future__ import annotations

from typing import Any

import pytest

from nbengine import SamplingParams
from nbengine.errors import PhaseError
from tests.scripted import scripted_llm

PHASES = ("schedule", "execute", "update")


@pytest.mark.parametrize("done", [0, 1, 2])
def test_wrong_order_names_the_next_phase_and_changes_nothing(done: int) -> None:
    llm: Any = scripted_llm({"a": "xy"})
    llm.llm_engine.add_request("a", "abc", SamplingParams(temperature=0))
    core = llm.llm_engine.engine_core.core
    for phase in PHASES[:done]:
        getattr(core, phase)()
    before = core.scheduler.describe(), core.next_phase, core.step_count, core.plan, core.result
    for phase in PHASES:
        if phase != PHASES[done]:
            with pytest.raises(PhaseError, match=f"{phase} was called, but the next phase of step 0 is {PHASES[done]}"):
                getattr(core, phase)()
    assert (core.scheduler.describe(), core.next_phase, core.step_count, core.plan, core.result) == before
    core.check_invariants()
    assert llm.wait_for_completion(use_tqdm=False)[0].outputs[0].text == "xy"
