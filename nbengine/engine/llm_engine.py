"""LLMEngine: the front. Text in, text out; between them the core, which knows tokens alone."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection
from typing import Any, NamedTuple

from nbengine.config import EngineArgs, EngineConfig
from nbengine.engine import interrupts
from nbengine.engine.core_client import EngineCoreClient
from nbengine.engine.detokenizer import Tokenizer
from nbengine.engine.input_processor import InputProcessor, ParsedPrompt, Prompt
from nbengine.engine.limits import EngineLimits
from nbengine.engine.output_processor import Mark, OutputProcessor
from nbengine.engine.parallel_sampling import child_ids, fan_out
from nbengine.engine.stats import EngineStats, Metric
from nbengine.errors import NBEngineError
from nbengine.executor import executor_class, make_executor
from nbengine.models.facts import ModelFacts
from nbengine.outputs import RequestOutput
from nbengine.protocol import EngineCoreOutputs, EngineCoreRequest, FinishReason
from nbengine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

Prepared = tuple[EngineCoreRequest, str | None]


class FrontMark(NamedTuple):
    """A moment of the front's."""

    outputs: Mark
    stats: EngineStats
    num_ids: int
    num_seeds: int


class LLMEngine:
    """Add requests, step, take outputs.

        engine = LLMEngine.from_engine_args(EngineArgs(model="smollm2-135m"))
        engine.add_request("a", "The capital of France is", SamplingParams(max_tokens=8))
        while engine.has_unfinished_requests():
            for output in engine.step():
                ...

    No asyncio and no threads anywhere here: it works inside a running event loop, a notebook's for one. An interrupt
    (Ctrl-C) leaves the engine whole: requests live on, and no output is lost, as step() hands out whatever has not been.
    """

    def __init__(
        self, config: EngineConfig, engine_core: EngineCoreClient, tokenizer: Tokenizer | None, facts: ModelFacts
    ) -> None:
        self.config = config
        self.engine_core = engine_core
        self.clock = engine_core.clock
        self.tokenizer = tokenizer
        self.sampling_defaults = facts.sampling_defaults
        self.limits = _limits(config, tokenizer, facts)
        self.input_processor = InputProcessor(self.limits, tokenizer, config.model.seed, self.clock.now)
        self.output_processor = OutputProcessor(tokenizer)
        self._stats = EngineStats()
        self.num_ids = 0  # given out by new_request_id

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLMEngine:
        """Load the model and build the engine. Raises ConfigError, ModelError."""
        chosen = executor_class(args.executor_cls)
        facts = chosen.model_facts(args.model_config())
        config = args.create_engine_config(facts.max_len)
        tokenizer = None if args.skip_tokenizer_init else chosen.load_tokenizer(config.model)
        return cls(config, EngineCoreClient.make_client(config, make_executor(config)), tokenizer, facts)

    # -------------------------------------------------------------------------------------------------------- requests

    def add_request(
        self,
        request_id: str,
        prompt: Prompt | ParsedPrompt,
        params: SamplingParams | None = None,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
    ) -> str:
        """Queue a request; returns its id. arrival_time: seconds of the engine's clock, default now.

        Raises InvalidRequestError (and its kinds: bad parameter, duplicate id); then nothing has changed.
        """
        params = params if params is not None else self.default_sampling_params()
        prepared = self.input_processor.process(request_id, prompt, params, arrival_time=arrival_time, priority=priority)
        self.add_prepared([prepared])
        return request_id

    def add_prepared(self, prepared: list[Prepared]) -> None:
        """Queue what the input processor made: all of it, or, if one is refused, none."""
        added: list[str] = []
        with interrupts.deferred():
            try:
                for request, prompt in prepared:
                    self._add(request, prompt, added)
            except Exception:  # the core's refusal, or an error in a scheduler or hash function of a person's own
                self.engine_core.abort_requests(self.output_processor.forget(added))
                raise

    def new_request_id(self) -> str:
        """The next number that no live request has as its id."""
        while True:
            request_id = str(self.num_ids)
            self.num_ids += 1
            if not self.is_alive(request_id):
                return request_id

    def abort_request(self, request_ids: str | list[str]) -> None:
        """End requests; each leaves a last output, with finish_reason "abort". Ids that are not alive are ignored."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        with interrupts.deferred():
            to_abort, outputs = self.output_processor.abort(ids)
            self.engine_core.abort_requests(to_abort)
            self._count(outputs)

    def abort_all(self) -> list[str]:
        """End every request and leave an empty, usable engine. Returns the ids that were alive."""
        alive = list(self.output_processor.requests)
        self.abort_request(alive)
        return alive

    # ---------------------------------------------------------------------------------------------------------- moving

    def step(self) -> list[RequestOutput]:
        """Run one step, if there is anything to do. Returns every output that has not been handed out yet."""
        self.advance()
        return self.take_outputs()

    def advance(self) -> list[RequestOutput]:
        """Run one step. The outputs that it made are returned to look at, and stay to be taken.

        Raises StepError if the model failed, StalledError if no step can ever change anything.
        """
        with interrupts.deferred():
            return self.process_outputs(self.engine_core.get_output()) if self.engine_core.has_work() else []

    def process_outputs(self, outputs: EngineCoreOutputs) -> list[RequestOutput]:
        """Make text of a step's tokens. To be called after a core.update() made by hand, within
        `interrupts.deferred()`.

        The outputs are returned to look at, and stay until someone takes them (`step`, `take_outputs`, `LLM.generate`).
        """
        with interrupts.deferred():
            made, to_abort = self.output_processor.process(outputs)
            self.engine_core.abort_requests(to_abort, FinishReason.STOP)
            self._stats.add_step(outputs)
            self._count(made)
            return made

    def take_outputs(self, request_ids: Collection[str] | None = None) -> list[RequestOutput]:
        """Hand out, once, what has been made: all, or for these requests."""
        return self.output_processor.outbox.take(request_ids)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. False while requests hold blocks (logged with their ids): nothing changes then,
        unless running requests may be preempted for it."""
        with interrupts.deferred():
            done = self.engine_core.reset_prefix_cache(reset_running_requests)
        if not done:
            holders = self.running() or self.waiting()
            logger.warning("The prefix cache was not reset: KV blocks are held by running requests: %s", ", ".join(holders))
        return done

    def reset(self) -> list[str]:
        """Drop every request without a last output, and the step under way, as after a failed step. The prefix cache is
        emptied too; weights stay. Returns the ids of the requests that were alive."""
        with interrupts.deferred():
            alive = list(self.output_processor.requests)
            self.output_processor.forget(alive)
            self.engine_core.reset()
        return alive

    def mark(self) -> FrontMark:
        """What the front knows now (texts under way, outputs not taken, statistics), to be put back by `restore`."""
        drawn = self.input_processor.num_seeds
        return FrontMark(self.output_processor.mark(), copy.deepcopy(self._stats), self.num_ids, drawn)

    def restore(self, mark: FrontMark) -> None:
        """Put the front back to a mark, as often as wanted. The core is to be put back to the same moment."""
        self.output_processor.restore(mark.outputs)
        self._stats = copy.deepcopy(mark.stats)
        self.num_ids, self.input_processor.num_seeds = mark.num_ids, mark.num_seeds

    def shutdown(self) -> None:
        """Free weights and KV cache. Calling it twice is fine."""
        self.engine_core.shutdown()

    # --------------------------------------------------------------------------------------------------------- looking

    def has_unfinished_requests(self) -> bool:
        return self.engine_core.has_unfinished_requests()

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.engine_core.has_work()

    def describe(self) -> str:
        """The scheduler's state in words, a line a request: for a bug report."""
        return self.engine_core.describe()

    def get_num_unfinished_requests(self) -> int:
        return len(self.output_processor.requests)

    def is_alive(self, request_id: str) -> bool:
        return request_id in self.output_processor.requests

    def running(self) -> list[str]:
        """Ids of running requests, in order of admission (with n > 1: of each answer)."""
        return self.engine_core.queues().running

    def waiting(self) -> list[str]:
        """Ids of waiting requests, the next to be admitted first (with n > 1: of each answer)."""
        return self.engine_core.queues().waiting

    def partial_outputs(self) -> list[RequestOutput]:
        """What the live requests have so far. Takes nothing away from what step() will hand out."""
        return self.output_processor.partial_outputs()

    def get_metrics(self) -> list[Metric]:
        """This engine's counters, gauges and mean times, under vLLM's names."""
        queues = self.engine_core.queues()
        return self._stats.metrics(len(queues.running), len(queues.waiting))

    def get_tokenizer(self) -> Any:
        """The tokenizer. Raises NBEngineError if the engine has none."""
        if self.tokenizer is None:
            raise NBEngineError("This engine has no tokenizer: it was made with skip_tokenizer_init=True.")
        return self.tokenizer

    def default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend (generation_config.json), else SamplingParams()."""
        return SamplingParams(**self.sampling_defaults)

    # ---------------------------------------------------------------------------------------------------------- within

    def _add(self, request: EngineCoreRequest, prompt: str | None, added: list[str]) -> None:
        request_id, children = request.request_id, child_ids(request)
        self.output_processor.add(request, prompt, children)
        added.append(request_id)
        for child in fan_out(request, children):
            self.engine_core.add_request(child)

    def _count(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if output.finished:
                self._stats.add_output(output)


def _limits(config: EngineConfig, tokenizer: Tokenizer | None, facts: ModelFacts) -> EngineLimits:
    """vLLM's rule: the tokenizer's eos ends a request; further ones of the generation config act as stop tokens."""
    eos = tokenizer.eos_token_id if tokenizer is not None else next(iter(facts.eos_token_ids), None)
    return EngineLimits(
        max_model_len=config.scheduler.max_model_len,
        block_size=config.cache.block_size,
        usable_blocks=config.cache.num_blocks - 1,
        max_logprobs=config.model.max_logprobs,
        vocab_size=facts.vocab_size,
        eos_token_id=eos,
        more_eos_token_ids=[token_id for token_id in facts.eos_token_ids if token_id != eos],
    )
