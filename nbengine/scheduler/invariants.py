"""The books of the engine: what must hold between any two phases, whatever happened.

`violations` looks at everything and says what is wrong, for the Lab's lamp; `check_invariants` raises, for tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from nbengine.errors import InvariantError
from nbengine.kv_cache.block_pool import NULL_BLOCK
from nbengine.scheduler.request import RequestStatus
from nbengine.scheduler.scheduler import Scheduler


class Violation(msgspec.Struct, frozen=True):
    """One thing that does not add up, and which blocks and requests it is about."""

    message: str
    block_ids: tuple[int, ...] = ()
    request_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


def check_invariants(scheduler: Scheduler) -> None:
    """Raises InvariantError with every violation and the scheduler's state."""
    if found := violations(scheduler):
        raise InvariantError("\n".join(map(str, found)) + "\n" + scheduler.describe())


def violations(scheduler: Scheduler) -> list[Violation]:
    """Everything that does not add up, empty if the books are right. O(blocks + tokens held)."""
    return [*_of_blocks(scheduler), *_of_the_index(scheduler), *_of_requests(scheduler), *_of_the_plan(scheduler)]


def _of_blocks(scheduler: Scheduler) -> Iterator[Violation]:
    pool = scheduler.kv.pool
    owners: Counter[int] = Counter()
    for request in scheduler.requests.values():
        owners.update(request.block_ids)
        if len(set(request.block_ids)) != len(request.block_ids):
            yield Violation(f"{request.request_id} holds a block twice", (), (request.request_id,))
    for block in range(1, pool.num_blocks):
        refs, held = pool.ref_counts[block], owners[block]
        if refs != held:
            yield Violation(f"block {block} has reference count {refs}, but {held} tables hold it", (block,))
        if (refs == 0) != (block in pool.free):
            where = "in" if block in pool.free else "missing from"
            yield Violation(f"block {block} has reference count {refs} and is {where} the free queue", (block,))
    if owners[NULL_BLOCK] or NULL_BLOCK in pool.free:
        yield Violation("the null block was handed out", (NULL_BLOCK,))
    held = sum(1 for block, count in owners.items() if count and block != NULL_BLOCK)
    if held + pool.num_free != pool.num_usable:
        yield Violation(f"{held} held + {pool.num_free} free blocks are not the {pool.num_usable} usable ones")


def _of_the_index(scheduler: Scheduler) -> Iterator[Violation]:
    pool = scheduler.kv.pool
    indexed: Counter[int] = Counter(pool.index.values())
    for others in pool.duplicates.values():
        indexed.update(others)
    for block, block_hash in enumerate(pool.hashes):
        if indexed[block] != (block_hash is not None):
            yield Violation(f"block {block} stands {indexed[block]} times in the prefix index, hash {block_hash!r}", (block,))
    for block_hash, block in pool.index.items():
        if pool.hashes[block] != block_hash:
            yield Violation(f"the prefix index leads to block {block}, which has another hash", (block,))


def _of_requests(scheduler: Scheduler) -> Iterator[Violation]:
    running = Counter(request.request_id for request in scheduler.running)
    waiting = Counter(request.request_id for request in scheduler.waiting_requests())
    for request_id in {*scheduler.requests, *running, *waiting}:
        places = running[request_id] + waiting[request_id]
        if places != 1 or request_id not in scheduler.requests:
            live = "live" if request_id in scheduler.requests else "not live"
            yield Violation(f"{request_id} is {live} and stands in {places} queues", (), (request_id,))
    for request in scheduler.requests.values():
        is_running = request.status is RequestStatus.RUNNING
        if is_running != bool(running[request.request_id]) or request.status is RequestStatus.FINISHED:
            yield Violation(f"{request.request_id} is {request.status} in the wrong queue", (), (request.request_id,))
        if not 0 <= request.num_computed_tokens <= request.num_tokens:
            message = f"{request.request_id} has {request.num_computed_tokens} of {request.num_tokens} tokens computed"
            yield Violation(message, (), (request.request_id,))
        if request.num_computed_tokens > len(request.block_ids) * scheduler.kv.block_size:
            message = f"{request.request_id} has more tokens computed than its {len(request.block_ids)} blocks hold"
            yield Violation(message, (), (request.request_id,))
    if len(scheduler.running) > scheduler.config.scheduler.max_num_seqs:
        yield Violation(f"{len(scheduler.running)} requests run, but max_num_seqs is {scheduler.config.scheduler.max_num_seqs}")


def _of_the_plan(scheduler: Scheduler) -> Iterator[Violation]:
    """The plan in flight: within the budget, and no slot of the KV cache written twice."""
    tokens, budget = scheduler.in_flight, scheduler.config.scheduler.token_budget
    if sum(tokens.values()) > budget:
        yield Violation(f"the plan has {sum(tokens.values())} tokens, but the budget is {budget}", (), tuple(tokens))
    writers: dict[tuple[int, int], str] = {}
    for request_id, count in tokens.items():
        request = scheduler.requests.get(request_id)
        if request is None or request.status is not RequestStatus.RUNNING:
            continue
        for position in range(request.num_computed_tokens - count, request.num_computed_tokens):
            slot = (request.block_ids[position // scheduler.kv.block_size], position % scheduler.kv.block_size)
            if slot in writers:
                message = f"slot {slot[1]} of block {slot[0]} is written by {writers[slot]} and {request_id} in one step"
                yield Violation(message, (slot[0],), (writers[slot], request_id))
            writers[slot] = request_id
