"""What the recorder reads straight from an engine: its limits, and its whole state as a keyframe."""

from __future__ import annotations

from typing import Any

import msgspec

from nbengine.kv_cache.block_pool import BlockPool
from nbengine.observe.observer import Watched
from nbengine.observe.records import Header, Keyframe, RequestState
from nbengine.observe.state import copy_state
from nbengine.observe.view import EngineView
from nbengine.protocol import PrefixCacheStats
from nbengine.scheduler.request import Request


def pool_of(scheduler: Any) -> BlockPool:
    """The scheduler's block pool."""
    pool: BlockPool = scheduler.kv.pool
    return pool


def int32s(data: bytes) -> list[int]:
    """The numbers of a batch tensor, those that stand for nothing (below 0) left out."""
    return [number for number in memoryview(data).cast("i") if number >= 0]


def waiting_ids(scheduler: Any) -> list[str]:
    """Who waits, next first."""
    return [request.request_id for request in scheduler.waiting_requests()]


def header_of(core: Watched, created: str) -> Header:
    """The engine and its limits."""
    config = core.config
    return Header(
        model=config.model.model,
        num_blocks=pool_of(core.scheduler).num_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        token_budget=config.scheduler.token_budget,
        max_model_len=config.scheduler.max_model_len,
        policy=config.scheduler.policy,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        enable_chunked_prefill=config.scheduler.enable_chunked_prefill,
        created=created,
        config=msgspec.to_builtins(config, enc_hook=_name_of),
    )


def _name_of(value: object) -> str:
    """Classes and functions among the options, by name."""
    return str(getattr(value, "__qualname__", value))


def changed_options(core: Watched, header: Header) -> dict[str, Any]:
    """The scheduler options that are not as the header says, by name."""
    now = msgspec.to_builtins(core.config.scheduler, enc_hook=_name_of)
    then = header.config.get("scheduler", {})
    changed = {name: value for name, value in now.items() if name in then and then[name] != value}
    budget = core.config.scheduler.token_budget
    return changed | ({"token_budget": budget} if budget != header.token_budget else {})


def is_untouched(core: Watched) -> bool:
    """Whether the engine has done nothing yet, so that its header says it all."""
    pool = pool_of(core.scheduler)
    fresh = core.step_count == 0 and core.next_phase == "schedule" and not core.scheduler.requests
    return bool(fresh and list(pool.free) == list(range(1, pool.num_blocks)) and not any(pool.hashes))


def keyframe_of(core: Watched, at: float, view: EngineView) -> Keyframe:
    """The engine's state as it really is, read from its own parts. Requests that finished are not there any more.

    view: what was known so far: the limits that the run began with, and the requests' times.
    """
    scheduler = core.scheduler
    pool = pool_of(scheduler)
    owners: list[list[str]] = [[] for _ in range(pool.num_blocks)]
    for request in scheduler.requests.values():
        for block in request.block_ids:
            owners[block].append(request.request_id)
    return Keyframe(
        step=core.step_count,
        at=at,
        phase=str(core.next_phase),
        requests=[state_of(request, view, core.executor.clock.now()) for request in scheduler.requests.values()],
        running=[request.request_id for request in scheduler.running],
        waiting=waiting_ids(scheduler),
        finished=[],
        owners=owners,
        hashes=[None if name is None else name[:8].hex() for name in pool.hashes],
        free_queue=list(pool.free),
        options=changed_options(core, view.header),
        busy_s=view.busy_s,
    )


def state_of(request: Request, view: EngineView, now: float) -> RequestState:
    """now: on the engine's clock. Of a request that came unseen all the time since counts as work."""
    seen = view.requests.get(request.request_id)
    return RequestState(
        request_id=request.request_id,
        status=str(request.status),
        token_ids=list(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=request.num_computed_tokens,
        max_tokens=request.max_tokens,
        block_ids=list(request.block_ids),
        priority=request.priority,
        added_at=seen.added_at if seen else view.busy_s - (now - request.arrival_time),
        first_token_at=seen.first_token_at if seen else None,
        last_token_at=seen.last_token_at if seen else None,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
    )


def ended(view: EngineView, dropped: list[str]) -> list[RequestState]:
    """The view's finished requests and those that a reset just dropped, as a new keyframe tells them."""
    states = []
    for request_id in view.finished + [name for name in dropped if name in view.requests]:
        state = copy_state(view.requests[request_id], RequestState)
        if state.status != "finished":
            state.status, state.finish_reason, state.block_ids = "finished", "abort", []
        states.append(state)
    return states


def prefix_numbers(stats: PrefixCacheStats) -> list[int]:
    """As Updated.prefix wants them."""
    again = [stats.preempted_requests, stats.preempted_queries, stats.preempted_hits]
    return [stats.requests, stats.queries, stats.hits, *again]
