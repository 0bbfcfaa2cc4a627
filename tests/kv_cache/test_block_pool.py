"""The free queue's order, the prefix index with its duplicates, and the observer's ops."""

from __future__ import annotations

import pytest

from nbengine.errors import InvariantError
from nbengine.kv_cache.block_pool import BlockPool
from nbengine.kv_cache.ops import Op
from tests.kv_cache.replay import Replay


def test_blocks_are_taken_from_the_front_and_the_null_block_never() -> None:
    pool = BlockPool(5)
    assert pool.take(4, "a") == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_usable, pool.usage) == (0, 4, 1.0)
    with pytest.raises(InvariantError, match="1 blocks asked for 'b', but 0 are free"):
        pool.take(1, "b")


def test_without_hashes_the_last_block_released_is_the_next_one_taken() -> None:
    pool = BlockPool(8)
    table = pool.take(3, "a")
    pool.release(table, "a")
    assert list(pool.free) == [3, 2, 1, 4, 5, 6, 7]


def test_hashed_blocks_go_to_the_back_tail_first() -> None:
    pool = BlockPool(8)
    table = pool.take(4, "a")
    for block in table[:3]:
        pool.enter(block, bytes([block]), "a")
    pool.release(table, "a")
    assert list(pool.free) == [4, 5, 6, 7, 3, 2, 1]


def test_a_shared_block_is_free_when_its_last_owner_lets_go() -> None:
    pool = BlockPool(4)
    table = pool.take(1, "a")
    pool.touch(table, "b")
    pool.release(table, "a")
    assert pool.ref_counts[1] == 1 and list(pool.free) == [2, 3]
    pool.release(table, "b")
    assert list(pool.free) == [1, 2, 3]


def test_a_hit_takes_a_free_block_out_of_the_middle_of_the_queue() -> None:
    pool = BlockPool(5)
    table = pool.take(3, "a")
    pool.enter(2, b"two", "a")
    pool.release(table, "a")
    assert list(pool.free) == [3, 1, 4, 2]
    pool.touch([2], "b")
    assert list(pool.free) == [3, 1, 4] and pool.hashes[2] == b"two"


def test_lookup_gives_the_duplicate_that_entered_first_of_those_still_there() -> None:
    pool = BlockPool(5)
    pool.take(4, "a")
    for block in (3, 1, 4):
        pool.enter(block, b"same", "a")
    assert pool.index[b"same"] == 3
    pool.forget(3)
    assert pool.index[b"same"] == 1
    pool.forget(4)
    assert pool.index[b"same"] == 1 and not pool.duplicates
    pool.forget(1)
    assert not pool.index


def test_taking_a_cached_block_evicts_it() -> None:
    pool = BlockPool(2)
    pool.ops = []
    pool.enter(pool.take(1, "a")[0], b"hash-of-eight", "a")
    pool.release([1], "a")
    assert pool.take(1, "b") == [1] and not pool.index
    assert [(op.op, op.block_id, op.request_id, op.hash) for op in pool.ops] == [
        (Op.ALLOCATE, 1, "a", None),
        (Op.CACHE, 1, "a", b"hash-of-".hex()),
        (Op.FREE_BACK, 1, "a", None),
        (Op.EVICT, 1, None, None),
        (Op.ALLOCATE, 1, "b", None),
    ]


def test_ops_replay_to_the_same_pool() -> None:
    pool, replay = BlockPool(9), Replay(9)
    pool.ops = []
    first = pool.take(5, "a")
    for block in (1, 2, 4):
        pool.enter(block, bytes([block]) * 8, "a")
    pool.touch([1, 2], "b")
    pool.release(first, "a")
    pool.forget(4)
    pool.release([1, 2, *pool.take(3, "b")], "b")
    pool.forget_all()
    replay.apply(pool.ops)
    replay.check(pool)


def test_nothing_is_noted_without_an_observer() -> None:
    pool = BlockPool(3)
    pool.release(pool.take(2, "a"), "a")
    assert pool.ops is None
