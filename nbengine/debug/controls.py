"""Changes by hand: each is made at a phase boundary, in the engine's thread, and is a record."""

from __future__ import annotations

import difflib
import math
from typing import Any

import msgspec

from nbengine.debug.arguments import option, whole
from nbengine.engine.core import EngineCore
from nbengine.engine.llm_engine import LLMEngine
from nbengine.errors import ConfigError, InvalidParameterError, InvalidRequestError, PhaseError
from nbengine.observe.observer import Phase
from nbengine.observe.recorder import Recorder
from nbengine.observe.state import is_of
from nbengine.protocol import SampledLogprobs
from nbengine.sampling_params import SamplingParams
from nbengine.scheduler.request import Request, RequestStatus

# What can be changed while the engine runs: limits that the scheduler reads anew in every step.
OPTIONS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "long_prefill_token_threshold",
    "policy",
    "watermark",
    "scheduler_reserve_full_isl",
    "enable_chunked_prefill",
)


def set_options(core: EngineCore, recorder: Recorder, options: dict[str, Any]) -> None:
    """Change scheduler options. Raises ConfigError, and changes nothing, for an unknown one or limits that contradict."""
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} cannot be changed while the engine runs; these can: {', '.join(OPTIONS)}.")
    now = core.config.scheduler
    options = {name: option(now, name, value) for name, value in options.items()}
    wanted = msgspec.structs.replace(now, **options)
    wanted.check()
    before_policy = now.policy
    before = {name: getattr(now, name) for name in options}
    for name, value in options.items():
        setattr(now, name, value)
    if now.policy != before_policy:
        try:
            sort_again(core)
        except Exception:
            for name, value in before.items():
                setattr(now, name, value)
            raise
    told = dict(options)
    if "max_num_batched_tokens" in options or "max_num_scheduled_tokens" in options:
        told["token_budget"] = now.token_budget
    recorder.on_changed("option", told)


def sort_again(core: EngineCore) -> None:
    """Put everyone who waits into queues of the new policy, in the order in which they came."""
    scheduler = core.scheduler
    waiting, skipped = scheduler.make_queue(), scheduler.make_queue()
    for request in sorted(scheduler.waiting, key=lambda request: request.arrival_time):
        waiting.add(request)
    for request in scheduler.skipped:
        skipped.add(request)
    scheduler.waiting, scheduler.skipped = waiting, skipped  # only now: a rule of one's own may have raised


def set_priority(core: EngineCore, recorder: Recorder, request_id: str, priority: int) -> None:
    """Change how important a request is (the smallest number goes first, under the priority policy)."""
    priority = whole("priority", priority, least=None)
    core.scheduler.set_priority(_alive(core, request_id), priority)
    recorder.on_changed("priority", {"priority": priority}, request_id)


def preempt(core: EngineCore, recorder: Recorder, request_id: str) -> None:
    """Take a running request's blocks; it waits at the front of the queue and computes its tokens again later."""
    core.scheduler.preempt(_alive(core, request_id))
    recorder.on_changed("preempt", {"preempted": [request_id]}, request_id)


def edit_token(core: EngineCore, recorder: Recorder, request_id: str, token_id: int, vocab_size: int | None) -> int:
    """Replace the token that `execute` just sampled for a request. Returns the one that was there.

    Where log probabilities were asked for, that of a token which is not among the reported ones is nan.

    Raises PhaseError unless update is next, InvalidRequestError if nothing was sampled for it, if it was aborted or
    preempted since, or for no such token.
    """
    if core.next_phase is not Phase.UPDATE or core.result is None:
        raise PhaseError(f"A token can be edited between execute and update; the next phase is {core.next_phase}.")
    if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
        raise InvalidRequestError(f"There is no token {token_id}: token ids go from 0 to {(vocab_size or 1 << 31) - 1}.")
    result = core.result
    place = result.request_ids.index(request_id) if request_id in result.request_ids else -1
    if place < 0 or not result.sampled_token_ids[place]:
        raise InvalidRequestError(f"Step {core.step_count} sampled nothing for {request_id!r}: there is no token to edit.")
    if _alive(core, request_id).status is not RequestStatus.RUNNING:
        raise InvalidRequestError(f"{request_id!r} was preempted since: its sampled token will be dropped, whatever it is.")
    before = result.sampled_token_ids[place][-1]
    result.sampled_token_ids[place][-1] = token_id
    if result.logprobs is not None and (reported := result.logprobs[place]):
        reported[-1] = _with_chosen(reported[-1], token_id)
    recorder.tell_texts([token_id])
    recorder.on_changed("edit_token", {"token_id": token_id, "before": before}, request_id)
    return before


def _with_chosen(reported: SampledLogprobs, token_id: int) -> SampledLogprobs:
    """The same alternatives, another token chosen."""
    likeliest = dict(zip(reported.token_ids[1:], reported.logprobs[1:]))
    rank = list(likeliest).index(token_id) + 1 if token_id in likeliest else 0
    if token_id == reported.token_ids[0]:
        return reported
    return SampledLogprobs([token_id, *likeliest], [likeliest.get(token_id, math.nan), *likeliest.values()], rank)


def sampling_params(engine: LLMEngine, params: dict[str, Any]) -> SamplingParams:
    """What the model's makers recommend, with these changed. Raises InvalidParameterError for a name that is none."""
    unknown = [name for name in params if name not in SamplingParams.__struct_fields__]
    if unknown:
        close = difflib.get_close_matches(unknown[0], SamplingParams.__struct_fields__, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InvalidParameterError(f"There is no sampling parameter {unknown[0]!r}.{hint}")
    return engine.default_sampling_params().clone(**params)


def one_token(engine: LLMEngine, text: str) -> int:
    """The token whose text this is. Raises InvalidRequestError if it is more than one."""
    ids = engine.input_processor.tokenize(text, add_special_tokens=False)
    if len(ids) != 1:
        raise InvalidRequestError(
            f"{text!r} is {len(ids)} tokens ({ids}), and one is wanted: give its id, or a shorter text."
        )
    return ids[0]


def _alive(core: EngineCore, request_id: str) -> Request:
    request: Request | None = core.scheduler.requests.get(request_id)
    if request is None:
        alive = ", ".join(core.scheduler.requests) or "none"
        answers = [name for name in core.scheduler.requests if is_of(name, request_id)]
        about = f"its answers are requests of their own: {', '.join(answers)}" if answers else f"alive: {alive}"
        raise InvalidRequestError(f"There is no live request {request_id!r}; {about}.")
    return request
