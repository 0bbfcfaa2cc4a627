"""What a cell or a terminal shows when its last value is one of the window's small objects: a sentence."""

from __future__ import annotations

from nbengine.scheduler.invariants import Violation, violations
from tests.debug.crowd import crowded


def test_a_breakpoint_and_its_hit() -> None:
    dbg = crowded()
    point = dbg.break_on("preempted", request="r4")
    assert repr(point) == "breakpoint 1 (on, 0 hits): preempted, request r4"
    stop = dbg.run()
    assert repr(stop) == f"stopped at step 8, before execute: breakpoint 1: {stop.why}"
    assert stop.why == "r4 preempted for r2 (needs 1, free 0, computed 16, freed 2)"
    assert repr(point) == "breakpoint 1 (on, 1 hit): preempted, request r4"
    dbg.breakpoints.clear()
    broken = dbg.break_when(lambda view: 1 / 0)
    dbg.step()
    assert repr(broken).startswith("breakpoint 2 (off, 0 hits, ZeroDivisionError: division by zero): when lambda view")
    assert repr(dbg.run(max_steps=1)) == "stopped at step 9, before schedule: 1 step done"


def test_a_step_and_what_is_in_it() -> None:
    dbg = crowded()
    record = dbg.step()
    assert repr(record).startswith("step 0\n  input     added r1\n")
    plan = record.scheduled
    assert repr(plan.decisions[1]) == "r2: admitted (tokens 1, remaining 0, chunked 0, hit 8)"
    assert [repr(op) for op in plan.block_ops[:4:3]] == [
        "block 1 given to r1",
        "block 1 cached by r1 (hash e26e55f5a9d3a4ad)",
    ]
    assert repr(dbg.view.events[0]) == "step 0: r1 added"
    assert repr(dbg.view.blocks) == "12 KV blocks: 1 null, 2 shared, 4 used, 5 free"
    assert repr(dbg.view.requests["r1"]).startswith("request r1\n")
    assert [repr(moment) for moment in dbg.history(request="r1")] == [
        "step 0, 0.000 s: queued r1: 9 prompt tokens",
        "step 0, 0.000 s: admitted r1 (9 tokens, 3 blocks)",
    ]
    assert repr(dbg.undo) == "undo log: steps 0 to 0 are kept (at most 512 steps and 512 MiB; older ones are dropped)"


def test_what_does_not_add_up() -> None:
    dbg = crowded()
    dbg.step()
    dbg.core.scheduler.kv.pool.ref_counts[9] += 1
    first, second = violations(dbg.core.scheduler)
    assert repr(first) == "Block 9 has reference count 1, but 0 tables hold it."
    assert repr(second) == "Blocks [9] are in the free queue, but held. (block 9)"
    assert "block 9" in str(dbg.run()).lower()
    about = Violation(message="r1 and r2 both write slot 9.", block_ids=[2], request_ids=["r1", "r2"])
    assert str(about) == "r1 and r2 both write slot 9. (block 2)"


def test_where_two_runs_part() -> None:
    dbg = crowded()
    dbg.run(until=3)
    fork = dbg.fork(max_num_seqs=1)
    for engine in (dbg, fork):
        engine.add("late", max_tokens=2)
        engine.run()
    comparison = dbg.compare(fork)
    assert repr(comparison.first_difference) == "step 3: batches differ: r5 4 here, nothing there"
    assert repr(comparison.here).startswith(f"steps {comparison.here.steps}, requests 5, finished 5, ")
