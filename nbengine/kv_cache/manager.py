"""KV blocks for requests: what a request finds in the prefix cache, whether it fits, and what it holds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nbengine.config import CacheConfig
from nbengine.kv_cache.block_pool import BlockPool
from nbengine.kv_cache.hashing import BlockHasher, CustomHasher, Hashable, make_hasher

NEVER = sys.maxsize  # a token count that no request reaches


class Holder(Hashable, Protocol):
    """What the manager reads and keeps up to date in a request.

    num_slots: tokens that its block table has room for. next_full: the token count at which the next of its blocks is
    full and enters the prefix index. Both follow from `block_ids` and `block_hashes`; they stand on the request so that
    a decode step that changes neither costs two comparisons.
    """

    request_id: str
    block_ids: list[int]
    block_hashes: list[bytes]
    num_slots: int
    next_full: int


class Room(NamedTuple):
    """Whether blocks are there, and the numbers that say so. watermark: blocks to be kept free beside."""

    needs: int
    free: int
    watermark: int = 0

    @property
    def fits(self) -> bool:
        return self.needs + self.watermark <= self.free


class KVCacheManager:
    """Block tables over one `BlockPool`, for one group of full-attention layers.

    num_collisions: prefix look-ups that found an equal hash over different content. Only a caller's own hash function is
    checked for them: against the SHA-256 chain, which covers tokens, parent and extra keys. A collision is a miss.
    """

    def __init__(self, config: CacheConfig, num_blocks: int) -> None:
        self.block_size = config.block_size
        self.enable_caching = config.enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self.hasher = make_hasher(config.prefix_caching_hash_algo, config.block_size)
        self.num_collisions = 0
        self._proof = BlockHasher(config.block_size) if isinstance(self.hasher, CustomHasher) else None
        self.proofs: dict[int, bytes] = {}  # block -> the SHA-256 of what it holds, where the hash is a caller's

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill or begin."""
        return -(-num_tokens // self.block_size)

    # ------------------------------------------------------------------------------------------------ prefix cache

    def hash_full_blocks(self, request: Holder) -> None:
        """Name the full blocks of a request that have no hash yet. Nothing to do without prefix caching."""
        full = len(request.token_ids) // self.block_size
        if self.enable_caching and full > len(request.block_hashes):
            self.hasher.extend(request, request.block_hashes, full)

    def lookup(self, request: Holder) -> list[int]:
        """The cached blocks that hold the request's first tokens, in table order. Changes nothing.

        The last token is never looked up: its logits are wanted, so it must be computed.
        """
        self.hash_full_blocks(request)
        get = self.pool.index.get
        hit: list[int] = []
        for block_hash in request.block_hashes[: (len(request.token_ids) - 1) // self.block_size]:
            block = get(block_hash)
            if block is None:
                break
            hit.append(block)
        return hit if self._proof is None else self._verified(request, hit)

    def _verified(self, request: Holder, hit: list[int]) -> list[int]:
        proofs = self._prove(request, len(hit))
        for index, block in enumerate(hit):
            if self.proofs[block] != proofs[index]:
                self.num_collisions += 1
                return hit[:index]
        return hit

    def _prove(self, request: Holder, num_blocks: int) -> list[bytes]:
        proofs: list[bytes] = []
        if self._proof is not None:
            self._proof.extend(request, proofs, num_blocks)
        return proofs

    def index_full_blocks(self, request: Holder, num_tokens: int) -> None:
        """Enter the blocks that are full at `num_tokens` tokens into the prefix index, before they are computed."""
        if not self.enable_caching:
            return
        self.hash_full_blocks(request)
        first = request.next_full // self.block_size - 1
        full = min(num_tokens, len(request.token_ids)) // self.block_size
        if self._proof is not None:
            for block, proof in zip(request.block_ids[:full], self._prove(request, full)):
                self.proofs[block] = proof
        for index in range(first, full):
            self.pool.enter(request.block_ids[index], request.block_hashes[index], request.request_id)
        request.next_full = (max(first, full) + 1) * self.block_size

    def reset(self) -> bool:
        """Empty the prefix index if no request holds a block; else change nothing and return False."""
        if self.pool.num_free < self.pool.num_usable:
            return False
        self.pool.forget_all()
        return True

    # ------------------------------------------------------------------------------------------------------- space

    def room_to_admit(self, hit: Sequence[int], num_tokens: int, watermark: int) -> Room:
        """Would a table of `num_tokens` tokens fit that begins with the `hit` blocks? Idle ones leave the queue too."""
        ref_counts = self.pool.ref_counts
        idle = [ref_counts[block] for block in hit].count(0)
        return Room(self.blocks_for(num_tokens) - len(hit) + idle, self.pool.num_free, watermark)

    def admit(self, request: Holder, hit: list[int], num_tokens: int) -> None:
        """Give a request its table: the hit blocks, then new ones up to `num_tokens` tokens. `room_to_admit` must fit."""
        self.pool.touch(hit, request.request_id)
        request.block_ids = hit + self.pool.take(self.blocks_for(num_tokens) - len(hit), request.request_id)
        request.num_slots = len(request.block_ids) * self.block_size
        request.next_full = (len(hit) + 1) * self.block_size if self.enable_caching else NEVER
        if num_tokens >= request.next_full:
            self.index_full_blocks(request, num_tokens)

    def grow(self, request: Holder, num_tokens: int) -> list[int] | Room:
        """Add blocks until `num_tokens` tokens fit; returns the added ones. If they are not there: why, and no change."""
        table, pool = request.block_ids, self.pool
        needs = -(-num_tokens // self.block_size) - len(table)
        if needs > len(pool.free):
            return Room(needs, len(pool.free))
        added = pool.take(needs, request.request_id)
        table += added
        request.num_slots = len(table) * self.block_size
        return added

    def release(self, request: Holder) -> None:
        """Give back everything that a request holds. Its full blocks stay in the prefix index until they are taken."""
        self.pool.release(request.block_ids, request.request_id)
        request.block_ids = []
        request.num_slots = 0
        request.next_full = NEVER

    def forget_uncomputed(self, request: Holder, num_computed: int) -> None:
        """Take blocks that are not wholly computed at `num_computed` tokens out of the prefix index.

        Blocks enter the index when they are planned. If their request then loses its place, nothing will ever fill them.
        vLLM 0.25.1 leaves them there under the priority policy, and other requests read what was never written.
        """
        for block in request.block_ids[num_computed // self.block_size :]:
            self.pool.forget(block)

    def num_common_prefix_blocks(self, table: list[int], num_owners: int) -> int:
        """Leading blocks of `table` that all `num_owners` requests share."""
        if not self.enable_caching:
            return 0
        ref_counts = self.pool.ref_counts
        for index, block in enumerate(table):
            if ref_counts[block] != num_owners:
                return index
        return len(table)
