"""R052: a self check cried leak while a chunk of a prompt legitimately held slots."""

from __future__ import annotations

from tests.observe.engines import make_llm


def test_no_false_alarm_in_any_phase_of_a_chunked_prompt() -> None:
    dbg = make_llm(num_blocks=30, max_num_batched_tokens=8).debug()
    dbg._window.recorder.check_every = 1
    dbg.add("x" * 40, max_tokens=4, temperature=0, ignore_eos=True)
    dbg.add("y" * 30, max_tokens=4, temperature=0, ignore_eos=True)
    while dbg.core.has_unfinished_requests():
        dbg.phase()
        dbg.core.check_invariants()
    chunked = [step for step in dbg.records if any(d.numbers.get("chunked") for d in step.scheduled.decisions)]  # type: ignore[union-attr]
    assert len(chunked) >= 4
    assert all(step.updated is not None and step.updated.violations == [] for step in dbg.records)
