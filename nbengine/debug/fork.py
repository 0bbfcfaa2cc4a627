"""A second engine from the middle of a first one's run: same requests, same blocks, same weights, other options."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from nbengine.config import EngineConfig
from nbengine.debug.arguments import option
from nbengine.debug.controls import OPTIONS, sort_again
from nbengine.engine.core import EngineCore
from nbengine.engine.core_client import InprocClient
from nbengine.engine.llm_engine import LLMEngine
from nbengine.engine.request_state import Answer
from nbengine.errors import ConfigError, PhaseError
from nbengine.kv_cache.block_pool import NULL_BLOCK
from nbengine.observe.observer import Phase
from nbengine.observe.undo import describe_running
from nbengine.protocol import EngineCoreOutput, EngineCoreRequest
from nbengine.scheduler.resize import check_fits, resize


def fork_engine(engine: LLMEngine, changed: dict[str, Any]) -> LLMEngine:
    """An engine that stands where `engine` stands, with changed options; neither sees what the other does from here on.

    changed: names of the scheduler's options ("scheduling_policy" too), scheduler_cls, num_gpu_blocks_override. Into a
    smaller pool go the held blocks, and of the cached ones as many as fit: see scheduler/resize.py.

    Raises ConfigError for options that contradict, or a pool too small for the live requests; PhaseError mid-step.
    """
    core = engine.engine_core.core  # type: ignore[attr-defined]
    if core.next_phase is not Phase.SCHEDULE:
        raise PhaseError(f"Fork between steps: step {core.step_count} is under way, and {core.next_phase} is next.")
    config = forked_config(core.config, changed)
    num_blocks = config.cache.num_gpu_blocks_override or 0
    check_fits(core.scheduler, num_blocks)
    executor = core.executor.fork(config)
    twin = EngineCore(config, executor)
    wanted = msgspec.structs.asdict(config.scheduler)
    twin.scheduler.restore(core.scheduler.snapshot())  # brings the old options along
    for name, value in wanted.items():
        setattr(twin.config.scheduler, name, value)
    if config.scheduler.policy != core.config.scheduler.policy:
        sort_again(twin)
    moved = resize(twin.scheduler, num_blocks)
    twin.step_count = core.step_count
    describe_running(twin)
    pool = core.scheduler.kv.pool
    blocks = [block for block in moved if block != NULL_BLOCK and (pool.ref_counts[block] or pool.hashes[block] is not None)]
    content = core.executor.copy_blocks_out(blocks) if blocks else None
    if content is not None:
        executor.copy_blocks_in([moved[block] for block in blocks], content)
    return _forked_front(engine, twin)


def _forked_front(engine: LLMEngine, twin: EngineCore) -> LLMEngine:
    """A front for the second core that knows the same live requests and their text so far."""
    facts = type(twin.executor).model_facts(twin.config.model)
    front = LLMEngine(twin.config, InprocClient(twin), engine.tokenizer, facts)
    front.num_ids, front.input_processor.num_seeds = engine.num_ids, engine.input_processor.num_seeds
    for state in engine.output_processor.requests.values():
        alive = next(twin.scheduler.requests[name] for name in state.core_ids if name in twin.scheduler.requests)
        request = EngineCoreRequest(
            request_id=state.request_id,
            prompt_token_ids=state.prompt_token_ids,
            sampling_params=alive.sampling_params,
            arrival_time=state.arrival_time,
            eos_token_id=alive.eos_token_id,
        )
        front.output_processor.add(request, state.prompt, list(state.core_ids))
        known = front.output_processor.requests[state.request_id]
        known.num_cached_tokens, known.prompt_logprobs = state.num_cached_tokens, state.prompt_logprobs
        for answer, copied in zip(state.answers, known.answers):
            _copy_answer(answer, copied)
    return front


def _copy_answer(answer: Answer, copied: Answer) -> None:
    if answer.logprobs is not None:
        copied.logprobs = None
    tokens = EngineCoreOutput(request_id="", new_token_ids=list(answer.token_ids), finish_reason=answer.finish_reason)
    copied.take(tokens, answer.token_times[-1] if answer.token_times else 0.0)
    copied.token_times[:] = answer.token_times
    if answer.logprobs is not None:
        copied.logprobs = copy.copy(answer.logprobs)
        copied.logprobs.positions = list(answer.logprobs.positions)


def forked_config(config: EngineConfig, changed: dict[str, Any]) -> EngineConfig:
    """A copy of the configuration with these options changed, checked."""
    fork = copy.deepcopy(config)
    fork.cache.num_gpu_blocks_override = config.cache.num_blocks
    names = {"scheduling_policy": "policy"}
    for given, value in changed.items():
        name = names.get(given, given)
        if name == "block_size":
            raise ConfigError(
                f"A fork goes on with blocks that hold {config.cache.block_size} tokens each, so block_size cannot change: "
                "make a new LLM with it. What can: the number of blocks (num_gpu_blocks_override)."
            )
        if name == "num_gpu_blocks_override":
            if not isinstance(value, int) or isinstance(value, bool) or value < 2:
                raise ConfigError(f"num_gpu_blocks_override must be at least 2 (block 0 is reserved), got {value!r}.")
            fork.cache.num_gpu_blocks_override = value
        elif name == "scheduler_cls":
            fork.scheduler.scheduler_cls = value
        elif name in OPTIONS:
            setattr(fork.scheduler, name, option(fork.scheduler, name, value))
        else:
            known = ", ".join(["num_gpu_blocks_override", "scheduler_cls", *OPTIONS])
            raise ConfigError(f"A fork cannot change {given!r}; it can: {known}.")
    fork.scheduler.check()
    return fork
