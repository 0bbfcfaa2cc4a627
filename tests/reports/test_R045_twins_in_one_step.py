"""R045: two identical prompts in one step. The second one shares the first one's full blocks, which this very step computes
(its forward pass writes before it reads); only what may differ has a block of its own. Losing one copy of a block never
breaks the look-up of another."""

from __future__ import annotations

from tests.scheduler.desk import Desk

PROMPT = list(range(8))


def test_reference_counts_and_blocks() -> None:
    desk = Desk(usable=8)
    a, b = desk.add("a", PROMPT), desk.add("b", PROMPT)
    desk.step()
    assert a.block_ids == [1, 2] and b.block_ids == [1, 3]  # of 2 full blocks 1 may hit: the last token must be computed
    assert desk.scheduler.kv.pool.ref_counts[:4] == [1, 2, 1, 1]
    assert desk.num_free == 5 and desk.cached == {"a": 0, "b": 4}


def test_evicting_one_copy_leaves_the_other() -> None:
    desk = Desk(usable=8, max_model_len=32)
    desk.add("a", PROMPT, max_tokens=1)
    desk.add("b", PROMPT, max_tokens=1)
    desk.step()
    pool = desk.scheduler.kv.pool
    first, second = 2, 3  # two copies of the second block
    name = pool.hashes[first]
    assert name is not None and pool.hashes[second] == name and pool.index[name] == first
    while first in pool.free:
        pool.take(1, "thief")
    assert pool.index[name] == second
    assert second in pool.free
