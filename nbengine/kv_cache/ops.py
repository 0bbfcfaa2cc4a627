"""What happens to a KV block, as small records: the block pool notes them when someone is looking."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Op(StrEnum):
    """Each op is enough to replay the pool: owners, reference counts, hashes and the order of the free queue."""

    ALLOCATE = "a"  # leaves the front of the free queue, reference count 1, owner = request
    EVICT = "e"  # loses its hash because it is about to be allocated
    HIT = "h"  # a prefix hit: reference count + 1; leaves the free queue if it was in it
    CACHE = "c"  # enters the prefix index under `hash`
    UNCACHE = "u"  # leaves the prefix index without being taken (reset, or content that was never computed)
    DEREF = "d"  # reference count - 1, others still hold it
    FREE_FRONT = "f"  # reference count 0: becomes the first of the free queue
    FREE_BACK = "b"  # reference count 0: becomes the last of the free queue


WORDS = {
    Op.ALLOCATE: "given to",
    Op.EVICT: "evicted",
    Op.HIT: "hit by",
    Op.CACHE: "cached by",
    Op.UNCACHE: "taken out of the prefix index",
    Op.DEREF: "let go by",
    Op.FREE_FRONT: "freed by",
    Op.FREE_BACK: "freed, still cached, by",
}


class BlockOp(msgspec.Struct, array_like=True):
    """hash: the first 8 bytes of the block hash in hex, for CACHE only. Ops stand in the order in which they happened."""

    op: Op
    block_id: int
    request_id: str | None = None
    hash: str | None = None

    def __str__(self) -> str:
        whom = f" {self.request_id}" if self.request_id else ""
        return f"block {self.block_id} {WORDS[self.op]}{whom}" + (f" (hash {self.hash})" if self.hash else "")

    __repr__ = __str__
