"""R114: compare policies and limits on the same workload."""

from __future__ import annotations

from nbengine.debug.compare import Scoreboard
from nbengine.debug.trace import Trace
from tests.observe.engines import make_llm


def run(policy: str, budget: int) -> Trace:
    options = {"scheduling_policy": policy, "max_num_batched_tokens": budget, "max_model_len": 48}
    dbg = make_llm(num_blocks=16, **options).debug()
    for i in range(8):
        dbg.add("shared prefix " + "abcdefgh"[: i + 1], priority=-i, max_tokens=10, seed=7, ignore_eos=True)
    dbg.run()
    return dbg.trace


def test_a_table_of_the_figures_for_each_configuration() -> None:
    runs = {f"{policy}, {budget}": run(policy, budget) for policy in ("fcfs", "priority") for budget in (16, 64)}
    board = Scoreboard(runs)
    rows = {row["run"]: row for row in board.rows()}
    assert len(rows) == 4 and all(row["finished"] == 8 and row["output_tokens"] == 80 for row in rows.values())
    for name in ("mean_ttft_s", "mean_itl_s", "preemptions", "prefix_hit_rate"):
        assert all(row[name] is not None for row in rows.values())
    assert rows["fcfs, 64"]["steps"] <= rows["fcfs, 16"]["steps"]
    assert "priority, 64" in repr(board) and "mean_ttft_s" in board._repr_mimebundle_()["text/html"]


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = run("priority", 16), run("priority", 16)
    first = {r.request_id: r.output_token_ids for r in one.view.requests.values()}
    assert first == {r.request_id: r.output_token_ids for r in other.view.requests.values()}
    assert [step.facts()["preempted"] for step in one.steps] == [step.facts()["preempted"] for step in other.steps]
