"""R076: pausing. A single request cannot be paused; the scheduler can: "new" admits nobody, "all" computes nothing.

Paused requests keep their blocks, and go on to the tokens that they would have had anyway.
"""

from __future__ import annotations

import pytest

from nbengine import SamplingParams
from nbengine.engine.core_client import InprocClient
from nbengine.llm import LLM
from tests.scripted import scripted_llm


def answers(llm: LLM) -> dict[str, str]:
    return {output.request_id: output.outputs[0].text for output in llm.wait_for_completion(use_tqdm=False)}


def start() -> tuple[LLM, InprocClient]:
    llm = scripted_llm({str(i): f"answer {i}" for i in range(4)}, max_num_seqs=3)
    llm.enqueue(["a", "b", "c", "d"], SamplingParams(max_tokens=20))
    client = llm.llm_engine.engine_core
    assert isinstance(client, InprocClient)
    return llm, client


@pytest.mark.parametrize("state", ["new", "all"])
def test_a_pause_of_five_steps_changes_no_token(state: str) -> None:
    llm, client = start()
    scheduler = client.core.scheduler
    for _ in range(3):
        llm.llm_engine.step()
    held = {request.request_id: list(request.block_ids) for request in scheduler.running}
    lengths = {request.request_id: request.num_tokens for request in scheduler.running}
    scheduler.pause_state = state  # type: ignore[assignment]
    for _ in range(5):
        client.core.schedule()
        client.core.check_invariants()
        client.core.execute()
        llm.llm_engine.process_outputs(client.core.update())
    for request in scheduler.running:
        assert request.block_ids[: len(held[request.request_id])] == held[request.request_id]
        assert request.num_tokens - lengths[request.request_id] == (5 if state == "new" else 0)
    assert llm.waiting() == ["3"]
    scheduler.pause_state = "none"
    assert answers(llm) == answers(start()[0])
