"""n > 1: one request of the user's becomes n requests of the core's.

Answer i is called "<i>_<id>" in the core and draws with seed + i: so n answers to a seed are n different ones, the same
every time, and each can be had alone with n=1 and its own seed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nbengine.protocol import EngineCoreRequest


def child_ids(request: EngineCoreRequest) -> list[str]:
    """What the core calls each of a request's answers: the request's own id if there is but one."""
    n = request.sampling_params.n
    return [request.request_id] if n == 1 else [f"{index}_{request.request_id}" for index in range(n)]


def fan_out(request: EngineCoreRequest, ids: list[str]) -> Iterator[EngineCoreRequest]:
    """The requests for the core, one an id. The last one is `request` itself, changed."""
    params = request.sampling_params
    for index, core_id in enumerate(ids):
        child = request if core_id == ids[-1] else msgspec.structs.replace(request)
        child.request_id = core_id
        if params.n > 1:
            child.sampling_params = params.clone(
                n=1,
                seed=None if params.seed is None else params.seed + index,
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,  # the same for all: the first one's serve
            )
        yield child
