"""All that a scheduler is, as plain values that can be compared."""

from __future__ import annotations

from typing import Any

import msgspec

from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler


def state_of(scheduler: Scheduler) -> dict[str, Any]:
    """Two schedulers with equal states decide alike for ever."""
    pool = scheduler.kv.pool
    return {
        "requests": {name: request_state(request) for name, request in scheduler.requests.items()},
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting],
        "skipped": [request.request_id for request in scheduler.skipped],
        "ref_counts": list(pool.ref_counts),
        "hashes": list(pool.hashes),
        "free": list(pool.free),
        "index": dict(pool.index),
        "duplicates": {name: list(blocks) for name, blocks in pool.duplicates.items()},
        "proofs": dict(scheduler.kv.proofs),
        "collisions": scheduler.kv.num_collisions,
        "stats": msgspec.to_builtins([scheduler.prefix_stats, scheduler.admissions]),
        "in_flight": list(scheduler.in_flight.items()),
        "finished": list(scheduler.finished_req_ids),
        "options": msgspec.structs.asdict(scheduler.config.scheduler),
        "rest": [
            scheduler.pause_state,
            scheduler.step,
            scheduler.num_preemptions,
            scheduler.preempted_since_update,
            scheduler.has_backlog,
            scheduler.budget_in_flight,
        ],
    }


def request_state(request: Request) -> dict[str, Any]:
    values = {name: getattr(request, name) for name in Request.__slots__}
    return {name: list(value) if isinstance(value, list) else value for name, value in values.items()}
