"""The scheduler's whole state, kept so that it can become it again: for rewinding, for a step that failed, for a fork.

Token, block and hash lists only ever grow at the end, or are replaced by new lists. So a snapshot keeps the list that was
there and its length, and copies nothing; restoring copies that much of it. Everything else is copied at once: O(blocks +
requests).
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from nbengine.protocol import PrefixCacheStats
from nbengine.scheduler.request import Request
from nbengine.scheduler.request_queue import KeyedQueue, RequestQueue

if TYPE_CHECKING:
    from nbengine.scheduler.scheduler import Scheduler

_GROWING = ("token_ids", "block_ids", "block_hashes", "prompt_logprobs")
_PLAIN = tuple(name for name in Request.__slots__ if name not in _GROWING)
_COUNTERS = ("pause_state", "step", "num_preemptions", "preempted_since_update", "has_backlog", "budget_in_flight")


class RequestSnapshot(NamedTuple):
    plain: tuple[Any, ...]
    lists: tuple[tuple[list[Any], int], ...]


class PoolSnapshot(NamedTuple):
    ref_counts: list[int]
    hashes: list[bytes | None]
    free: list[int]
    duplicates: dict[bytes, list[int]]
    proofs: dict[int, bytes]
    num_collisions: int


class Snapshot(NamedTuple):
    """Made by `Scheduler.snapshot`. Restores into that scheduler, or into a new one with the same number of blocks."""

    requests: list[RequestSnapshot]
    running: list[str]
    waiting: list[str]
    skipped: list[str]
    keys: dict[str, Any]  # that those who wait were queued with: a rule may say something else of them by now
    made_by: type[Scheduler]  # whose keys these are
    pool: PoolSnapshot
    counters: tuple[Any, ...]
    prefix_stats: PrefixCacheStats
    admissions: PrefixCacheStats
    in_flight: dict[str, int]
    finished_req_ids: list[str]
    options: dict[str, Any]  # of config.scheduler: they may be changed by hand while it runs

    @property
    def nbytes(self) -> int:
        """Roughly what this snapshot alone keeps in memory: its own containers, not the token lists that it shares."""
        size = sum(map(sys.getsizeof, self.pool)) + sum(map(sys.getsizeof, self.pool.duplicates.values()))
        size += sum(map(sys.getsizeof, (self.running, self.waiting, self.skipped, self.keys, self.in_flight, self.options)))
        per_request = 400  # two tuples, three (list, length) pairs
        return size + per_request * len(self.requests)


def take(scheduler: Scheduler) -> Snapshot:
    kv, pool = scheduler.kv, scheduler.kv.pool
    return Snapshot(
        requests=[_take_request(request) for request in scheduler.requests.values()],
        running=_ids(scheduler.running),
        waiting=_ids(scheduler.waiting),
        skipped=_ids(scheduler.skipped),
        keys=_keys(scheduler.waiting) | _keys(scheduler.skipped),
        made_by=type(scheduler),
        pool=PoolSnapshot(
            ref_counts=pool.ref_counts.copy(),
            hashes=pool.hashes.copy(),
            free=list(pool.free),
            duplicates={block_hash: list(blocks) for block_hash, blocks in pool.duplicates.items()},
            proofs=kv.proofs.copy(),
            num_collisions=kv.num_collisions,
        ),
        counters=tuple(getattr(scheduler, name) for name in _COUNTERS),
        prefix_stats=copy(scheduler.prefix_stats),
        admissions=copy(scheduler.admissions),
        in_flight=scheduler.in_flight.copy(),
        finished_req_ids=list(scheduler.finished_req_ids),
        options=msgspec.structs.asdict(scheduler.config.scheduler),
    )


def put_back(scheduler: Scheduler, snapshot: Snapshot) -> None:
    """Requests that still live keep their objects; those that have ended since get new ones."""
    for name, value in snapshot.options.items():
        setattr(scheduler.config.scheduler, name, value)
    for name, value in zip(_COUNTERS, snapshot.counters):
        setattr(scheduler, name, value)
    live = scheduler.requests
    scheduler.requests = {}
    for saved in snapshot.requests:
        request = _put_back_request(saved, live)
        scheduler.requests[request.request_id] = request
    scheduler.running = [scheduler.requests[request_id] for request_id in snapshot.running]
    keys = snapshot.keys if snapshot.made_by is type(scheduler) else {}
    scheduler.waiting = _refill(scheduler, snapshot.waiting, keys)
    scheduler.skipped = _refill(scheduler, snapshot.skipped, keys)
    scheduler.prefix_stats = copy(snapshot.prefix_stats)
    scheduler.admissions = copy(snapshot.admissions)
    scheduler.in_flight = snapshot.in_flight.copy()
    scheduler.finished_req_ids = dict.fromkeys(snapshot.finished_req_ids)
    _put_back_pool(scheduler, snapshot.pool)


def _take_request(request: Request) -> RequestSnapshot:
    return RequestSnapshot(
        plain=tuple([getattr(request, name) for name in _PLAIN]),
        lists=tuple([(items := getattr(request, name), len(items)) for name in _GROWING]),
    )


def _put_back_request(saved: RequestSnapshot, live: dict[str, Request]) -> Request:
    plain = dict(zip(_PLAIN, saved.plain))
    request = live.get(plain["request_id"]) or Request.__new__(Request)
    for name, value in plain.items():
        setattr(request, name, value)
    for name, (items, length) in zip(_GROWING, saved.lists):
        setattr(request, name, items[:length])
    return request


def _put_back_pool(scheduler: Scheduler, saved: PoolSnapshot) -> None:
    kv, pool = scheduler.kv, scheduler.kv.pool
    pool.ref_counts = saved.ref_counts.copy()
    pool.hashes = saved.hashes.copy()
    pool.free = OrderedDict.fromkeys(saved.free)
    pool.duplicates = {block_hash: OrderedDict.fromkeys(blocks) for block_hash, blocks in saved.duplicates.items()}
    later = {block for blocks in saved.duplicates.values() for block in blocks}
    pool.index = {h: block for block, h in enumerate(saved.hashes) if h is not None and block not in later}
    kv.proofs = saved.proofs.copy()
    kv.num_collisions = saved.num_collisions


def _ids(requests: list[Request] | RequestQueue) -> list[str]:
    return [request.request_id for request in requests]


def _keys(queue: RequestQueue) -> dict[str, Any]:
    return queue.keys() if isinstance(queue, KeyedQueue) else {}


def _refill(scheduler: Scheduler, request_ids: list[str], keys: dict[str, Any]) -> RequestQueue:
    queue = scheduler.make_queue()
    for request_id in request_ids:
        request = scheduler.requests[request_id]
        if request_id in keys and isinstance(queue, KeyedQueue):
            queue.put_back(request, keys[request_id])
        else:
            queue.add(request)
    return queue
