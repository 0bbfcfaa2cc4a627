"""The KV blocks: who may take one, which are shared, and which still hold a prefix that somebody may want.

Blocks are plain integers; everything known of block b stands at index b of a list. Block 0 is the null block: padding in
block tables, never handed out. A block is either held (reference count above 0) or in the free queue, where it keeps its
content, and its place in the prefix index, until it is taken again.
"""

from __future__ import annotations

from collections import OrderedDict

from nbengine.errors import InvariantError
from nbengine.kv_cache.ops import BlockOp, Op

NULL_BLOCK = 0


class BlockPool:
    """Reference counts, the free queue and the prefix index of `num_blocks` blocks, null block included.

    ops: the observer's slot. When it is a list, every change is noted there in the order in which it happens.

    The free queue must give its first block, take a block out of its middle (a prefix hit) and grow at both ends, each in
    constant time whatever the number of blocks. `OrderedDict` is a doubly linked list in C with an index on top: all four.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.ref_counts[NULL_BLOCK] = 1
        self.hashes: list[bytes | None] = [None] * num_blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.index: dict[bytes, int] = {}  # hash -> the block that entered first, of those still there
        self.duplicates: dict[bytes, OrderedDict[int, None]] = {}  # hash -> later blocks with the same content, in order
        self.ops: list[BlockOp] | None = None

    @property
    def num_usable(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return len(self.free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that is held, 0 … 1."""
        return 1 - len(self.free) / self.num_usable if self.num_usable else 0.0

    def take(self, count: int, request_id: str) -> list[int]:
        """The first `count` free blocks, in queue order, with reference count 1; they lose their hashes.

        The caller makes sure that there are enough. O(count).
        """
        if count > len(self.free):
            raise InvariantError(f"{count} blocks asked for {request_id!r}, but {len(self.free)} are free.")
        taken = []
        free, hashes, ref_counts, ops = self.free, self.hashes, self.ref_counts, self.ops
        for _ in range(count):
            block, _none = free.popitem(last=False)
            if hashes[block] is not None:
                self._unindex(block)
                if ops is not None:
                    ops.append(BlockOp(Op.EVICT, block))
            ref_counts[block] = 1
            taken.append(block)
            if ops is not None:
                ops.append(BlockOp(Op.ALLOCATE, block, request_id))
        return taken

    def touch(self, blocks: list[int], request_id: str) -> None:
        """One more owner for each block; a free one leaves the queue, wherever it stands, and keeps its hash."""
        free, ref_counts, ops = self.free, self.ref_counts, self.ops
        for block in blocks:
            if ref_counts[block] == 0:
                del free[block]
            ref_counts[block] += 1
            if ops is not None:
                ops.append(BlockOp(Op.HIT, block, request_id))

    def release(self, table: list[int], request_id: str) -> None:
        """One owner fewer for each block of a request's table, last block first.

        Blocks that nobody holds any more are free: those without a hash go to the front of the queue, in that order, as
        the next to be taken; those with one go to the back, tail first, so that a prefix outlives its continuations.
        """
        free, hashes, ref_counts, ops = self.free, self.hashes, self.ref_counts, self.ops
        worthless = []
        for block in reversed(table):
            left = ref_counts[block] = ref_counts[block] - 1
            if left > 0:
                if ops is not None:
                    ops.append(BlockOp(Op.DEREF, block, request_id))
            elif hashes[block] is None:
                worthless.append(block)
            else:
                free[block] = None
                if ops is not None:
                    ops.append(BlockOp(Op.FREE_BACK, block, request_id))
        for block in reversed(worthless):
            free[block] = None
            free.move_to_end(block, last=False)
            if ops is not None:
                ops.append(BlockOp(Op.FREE_FRONT, block, request_id))

    def enter(self, block: int, block_hash: bytes, request_id: str) -> None:
        """Put a block into the prefix index. If its content is there already, it stands behind the earlier blocks."""
        self.hashes[block] = block_hash
        if self.index.setdefault(block_hash, block) != block:
            self.duplicates.setdefault(block_hash, OrderedDict())[block] = None
        if self.ops is not None:
            self.ops.append(BlockOp(Op.CACHE, block, request_id, block_hash[:8].hex()))

    def forget(self, block: int) -> None:
        """Take a block out of the prefix index, where it is not for a new owner to do so: its content is not to be used."""
        if self.hashes[block] is None:
            return
        self._unindex(block)
        if self.ops is not None:
            self.ops.append(BlockOp(Op.UNCACHE, block))

    def forget_all(self) -> None:
        """Empty the prefix index. The free queue keeps its order. O(num_blocks)."""
        for block, block_hash in enumerate(self.hashes):
            if block_hash is not None:
                self.forget(block)

    def _unindex(self, block: int) -> None:
        block_hash = self.hashes[block]
        if block_hash is None:
            return
        self.hashes[block] = None
        others = self.duplicates.get(block_hash)
        if self.index[block_hash] != block:
            assert others is not None
            del others[block]
        elif others:
            self.index[block_hash], _none = others.popitem(last=False)
        else:
            del self.index[block_hash]
        if others is not None and not others:
            del self.duplicates[block_hash]
