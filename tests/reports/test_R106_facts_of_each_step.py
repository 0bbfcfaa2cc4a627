"""R106: people want the facts of each iteration, in process, without a metrics server."""

from __future__ import annotations

import msgspec

from tests.observe.engines import make_llm

FIELDS = {
    "step", "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "new", "resumed", "preempted",
    "finished", "output_tokens", "schedule_ms", "execute_ms", "update_ms", "free_blocks",
}  # fmt: skip


def test_one_record_a_step_and_their_sums_are_the_totals() -> None:
    dbg = make_llm(num_blocks=12, max_model_len=40).debug()
    for i in range(6):
        dbg.add(f"abcdefgh{i}", max_tokens=10, temperature=0, ignore_eos=True)
    for _ in range(20):
        dbg.step()
    dbg.run()
    rows = dbg.records.rows()
    assert [row["step"] for row in rows] == list(range(len(rows))) and set(rows[0]) >= FIELDS
    view = dbg.view
    assert sum(row["output_tokens"] for row in rows) == 60 == sum(len(r.output_token_ids) for r in view.requests.values())
    assert sum(row["finished"] for row in rows) == 6 == sum(row["new"] for row in rows)
    assert sum(row["preempted"] for row in rows) == sum(r.num_preemptions for r in view.requests.values()) > 0
    assert sum(row["resumed"] for row in rows) == sum(row["preempted"] for row in rows)
    scheduled = sum(row["prefill_tokens"] + row["decode_tokens"] for row in rows)
    assert scheduled == sum(sum(step.scheduled.tokens) for step in dbg.records if step.scheduled)
    assert all(0 <= row["free_blocks"] <= 11 and row["execute_ms"] >= 0 for row in rows)
    assert msgspec.json.encode(rows)
