"""A second engine from the middle of a first one's run: same requests, same blocks, same weights, other options."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from nbengine.config import EngineConfig
from nbengine.engine.core import EngineCore
from nbengine.engine.core_client import InprocClient
from nbengine.engine.llm_engine import LLMEngine
from nbengine.engine.request_state import Answer
from nbengine.errors import ConfigError, PhaseError
from nbengine.observe.observer import Phase
from nbengine.observe.undo import describe_running
from nbengine.protocol import EngineCoreOutput, EngineCoreRequest


def fork_engine(engine: LLMEngine, changed: dict[str, Any]) -> LLMEngine:
    """An engine that stands where `engine` stands, with changed options; neither sees what the other does from here on.

    changed: names of the scheduler's options ("scheduling_policy" too), scheduler_cls. The KV pool stays as large, so that
    every block can keep its number and content. Raises ConfigError for options that contradict, PhaseError mid-step.
    """
    core = engine.engine_core.core  # type: ignore[attr-defined]
    if core.next_phase is not Phase.SCHEDULE:
        raise PhaseError(f"Fork between steps: step {core.step_count} is under way, and {core.next_phase} is next.")
    config = forked_config(core.config, changed)
    executor = core.executor.fork(config)
    twin = EngineCore(config, executor)
    wanted = msgspec.structs.asdict(config.scheduler)
    twin.scheduler.restore(core.scheduler.snapshot())  # brings the old options along
    for name, value in wanted.items():
        setattr(twin.config.scheduler, name, value)
    if config.scheduler.policy != core.config.scheduler.policy:
        from nbengine.debug.controls import sort_again

        sort_again(twin)
    twin.step_count = core.step_count
    describe_running(twin)
    held = [block for block, count in enumerate(core.scheduler.kv.pool.ref_counts) if block and count]
    cached = [b for b, name in enumerate(core.scheduler.kv.pool.hashes) if name is not None]
    blocks = sorted({*held, *cached})
    content = core.executor.copy_blocks_out(blocks) if blocks else None
    if content is not None:
        executor.copy_blocks_in(blocks, content)
    return _forked_front(engine, twin)


def _forked_front(engine: LLMEngine, twin: EngineCore) -> LLMEngine:
    """A front for the second core that knows the same live requests and their text so far."""
    facts = type(twin.executor).model_facts(twin.config.model)
    front = LLMEngine(twin.config, InprocClient(twin), engine.tokenizer, facts)
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
        for answer, copied in zip(state.answers, front.output_processor.requests[state.request_id].answers):
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
    names = {"scheduling_policy": "policy"}
    for given, value in changed.items():
        name = names.get(given, given)
        if name in ("num_gpu_blocks_override", "block_size"):
            raise ConfigError(f"A fork keeps its blocks, so {given} cannot change: make a new LLM for that.")
        if name not in fork.scheduler.__struct_fields__:
            raise ConfigError(f"A fork cannot change {given!r}; it can: {', '.join(fork.scheduler.__struct_fields__)}.")
        setattr(fork.scheduler, name, value)
    fork.scheduler.check()
    fork.cache.num_gpu_blocks_override = config.cache.num_blocks
    return fork
