"""R110: a live map of the KV blocks, for teaching. Here: the data that it is drawn from."""

from __future__ import annotations

from tests.observe.engines import make_llm


def test_the_shared_prefix_block_by_block() -> None:
    dbg = make_llm(num_blocks=20).debug()
    for i in range(3):
        dbg.add(f"abcdefgh{i}", max_tokens=4, temperature=0, ignore_eos=True)
    dbg.step()
    view = dbg.view
    shared = [block for block in view.blocks if block.state == "shared"]
    assert [block.ref_count for block in shared] == [3, 3] and shared[0].owners == ["r1", "r2", "r3"]
    assert "".join(view.texts[token] for token in shared[0].token_ids) == "abcd"
    assert all(block.hash for block in shared) and view.blocks[0].state == "null"
    changed = {op.block_id for op in view.scheduled.block_ops}  # type: ignore[union-attr]
    assert changed == {block for request in view.requests.values() for block in request.block_ids}
    dbg.run()
    cached = [block for block in view.blocks if block.state == "cached"]
    assert shared[0].block_id in [block.block_id for block in cached] and not any(b.ref_count for b in view.blocks)
    queue = view.free_queue
    assert sorted(queue) == list(range(1, 20))
    places = [queue.index(block.block_id) for block in view.blocks if block.state in ("free", "cached") and block.hash]
    assert min(places) >= sum(block.state == "free" for block in view.blocks)  # empty ones are taken first
    assert queue == list(dbg.core.scheduler.kv.pool.free)
