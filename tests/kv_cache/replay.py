"""A block pool rebuilt from nothing but its ops: what a viewer does."""

from __future__ import annotations

from collections.abc import Iterable

from nbengine.kv_cache.block_pool import BlockPool
from nbengine.kv_cache.ops import BlockOp, Op


class Replay:
    """Owners, short hashes and the free queue's order, folded from `BlockOp`s."""

    def __init__(self, num_blocks: int) -> None:
        self.owners: list[list[str | None]] = [[] for _ in range(num_blocks)]
        self.hashes: list[str | None] = [None] * num_blocks
        self.free = list(range(1, num_blocks))

    def apply(self, ops: Iterable[BlockOp]) -> None:
        for op in ops:
            block, owners = op.block_id, self.owners[op.block_id]
            match op.op:
                case Op.ALLOCATE:
                    assert self.free.pop(0) == block and not owners
                    owners.append(op.request_id)
                case Op.HIT:
                    if not owners:
                        self.free.remove(block)
                    owners.append(op.request_id)
                case Op.CACHE:
                    self.hashes[block] = op.hash
                case Op.EVICT | Op.UNCACHE:
                    assert self.hashes[block] is not None
                    self.hashes[block] = None
                case Op.DEREF:
                    owners.remove(op.request_id)
                    assert owners
                case Op.FREE_FRONT | Op.FREE_BACK:
                    assert owners == [op.request_id]
                    owners.clear()
                    self.free.insert(0 if op.op is Op.FREE_FRONT else len(self.free), block)

    def check(self, pool: BlockPool) -> None:
        """Raises AssertionError unless the real pool is what the ops say."""
        assert self.free == list(pool.free)
        assert [len(owners) for owners in self.owners[1:]] == pool.ref_counts[1:]
        assert self.hashes == [None if name is None else name[:8].hex() for name in pool.hashes]
