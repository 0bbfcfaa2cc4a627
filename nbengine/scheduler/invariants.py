"""The books of the scheduler and its block pool, checked against each other. Used by tests, and by a person who asks.

Holds between any two phases of a step. O(blocks + tokens of the plan in flight).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from nbengine.errors import InvariantError
from nbengine.kv_cache.block_pool import NULL_BLOCK
from nbengine.scheduler.request import Request, RequestStatus

if TYPE_CHECKING:
    from nbengine.scheduler.scheduler import Scheduler


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that does not add up, and the blocks and requests that it is about."""

    message: str
    block_ids: list[int] = []
    request_ids: list[str] = []

    def __str__(self) -> str:
        """The message, and whatever it is about that the message does not name. The Lab finds blocks by "block 5"."""
        about = [*(f"block {block}" for block in self.block_ids), *self.request_ids]
        more = [name for name in about if not re.search(rf"\b{re.escape(name)}\b", self.message, re.IGNORECASE)]
        return f"{self.message} ({', '.join(more)})" if more else self.message

    __repr__ = __str__


def check_invariants(scheduler: Scheduler) -> None:
    """Raises InvariantError with every violation and the scheduler's state."""
    if found := violations(scheduler):
        raise InvariantError("\n".join([*(violation.message for violation in found), scheduler.describe()]))


def violations(scheduler: Scheduler) -> list[Violation]:
    """Everything that does not add up; empty when all is well."""
    checks = (_reference_counts, _free_queue, _prefix_index, _queues, _tables, _plan_in_flight)
    return list(chain.from_iterable(check(scheduler) for check in checks))


def _reference_counts(scheduler: Scheduler) -> Iterator[Violation]:
    pool = scheduler.kv.pool
    owners = Counter(block for request in scheduler.requests.values() for block in request.block_ids)
    owners[NULL_BLOCK] += 1
    for block, count in enumerate(pool.ref_counts):
        if count != owners[block]:
            holders = [r.request_id for r in scheduler.requests.values() if block in r.block_ids]
            message = f"Block {block} has reference count {count}, but {owners[block]} tables hold it."
            yield Violation(message=message, block_ids=[block], request_ids=holders)


def _free_queue(scheduler: Scheduler) -> Iterator[Violation]:
    pool = scheduler.kv.pool
    if held := [block for block in pool.free if pool.ref_counts[block] != 0]:
        yield Violation(message=f"Blocks {held} are in the free queue, but held.", block_ids=held)
    if lost := [block for block, count in enumerate(pool.ref_counts) if count == 0 and block not in pool.free]:
        yield Violation(message=f"Blocks {lost} are neither held nor free.", block_ids=lost)
    if NULL_BLOCK in pool.free:
        yield Violation(message="The null block is in the free queue.", block_ids=[NULL_BLOCK])


def _prefix_index(scheduler: Scheduler) -> Iterator[Violation]:
    pool = scheduler.kv.pool
    indexed = {block: name for name, block in pool.index.items()}
    for name, blocks in pool.duplicates.items():
        if not blocks or name not in pool.index:
            yield Violation(
                message=f"The index has duplicates of {name[:8].hex()} and no first block.", block_ids=list(blocks)
            )
        indexed.update(dict.fromkeys(blocks, name))
    wrong = [block for block, name in enumerate(pool.hashes) if name != indexed.get(block)]
    if wrong:
        yield Violation(message=f"Blocks {wrong} have a hash that is not the prefix index's.", block_ids=wrong)
    if pool.hashes[NULL_BLOCK] is not None:
        yield Violation(message="The null block is in the prefix index.", block_ids=[NULL_BLOCK])


def _queues(scheduler: Scheduler) -> Iterator[Violation]:
    places = Counter(map(id, chain(scheduler.running, scheduler.waiting, scheduler.skipped)))
    for request in scheduler.requests.values():
        if places[id(request)] != 1:
            message = f"{request.request_id} is in {places[id(request)]} queues; a live request is in exactly one."
            yield Violation(message=message, request_ids=[request.request_id])
    known = set(map(id, scheduler.requests.values()))
    in_running = set(map(id, scheduler.running))
    for request in chain(scheduler.running, scheduler.waiting, scheduler.skipped):
        running = id(request) in in_running
        if id(request) not in known:
            yield _about(request, f"{request.request_id} is in a queue, but not live.")
        elif running != (request.status is RequestStatus.RUNNING) or request.status is RequestStatus.FINISHED:
            yield _about(request, f"{request.request_id} is {request.status}, but {'' if running else 'not '}in running.")


def _tables(scheduler: Scheduler) -> Iterator[Violation]:
    kv = scheduler.kv
    for request in scheduler.requests.values():
        computed, name = request.num_computed_tokens, request.request_id
        if not 0 <= computed <= request.num_tokens:
            yield _about(request, f"{name} has {computed} computed tokens of {request.num_tokens}.")
        if computed > request.num_slots or request.num_slots != len(request.block_ids) * kv.block_size:
            yield _about(request, f"{name} has {computed} computed tokens in {len(request.block_ids)} blocks.")
        if request.status is not RequestStatus.RUNNING and request.block_ids:
            yield _about(request, f"{name} is {request.status} and holds blocks {request.block_ids}.")
        if NULL_BLOCK in request.block_ids or len(set(request.block_ids)) != len(request.block_ids):
            yield _about(request, f"{name}'s table has the null block, or a block twice: {request.block_ids}.")


def _plan_in_flight(scheduler: Scheduler) -> Iterator[Violation]:
    """The token budget, and that no two tokens of the step go to the same place."""
    budget, used = scheduler.budget_in_flight, sum(scheduler.in_flight.values())
    if used > budget:
        yield Violation(message=f"The plan in flight has {used} tokens, more than its budget of {budget}.")
    size = scheduler.kv.block_size
    writers: dict[int, str] = {}
    for request_id, tokens in scheduler.in_flight.items():
        request = scheduler.requests.get(request_id)
        if request is None or request.status is not RequestStatus.RUNNING:
            continue  # aborted or preempted since
        end = min(request.num_computed_tokens, request.num_slots)
        for position in range(end - tokens, end):
            slot = request.block_ids[position // size] * size + position % size
            if slot in writers:
                message = f"{request_id} and {writers[slot]} both write slot {slot} in this step."
                yield Violation(message=message, block_ids=[slot // size], request_ids=[request_id, writers[slot]])
            writers[slot] = request_id


def _about(request: Request, message: str) -> Violation:
    return Violation(message=message, block_ids=list(request.block_ids), request_ids=[request.request_id])
