"""An executor without weights: a rule says which token comes next, a cost model how long each step takes.

    llm = LLM("simulated", executor_cls=SimulatedExecutor)

Queues, KV blocks, prefix cache and debugger are the real ones; only the model is made up. Time is the simulation's: a
clock that nothing but the steps (and `wait_until`) move. So a run of minutes is over at once, its TTFT and ITL are
figures in seconds all the same, and the same run gives the same figures to the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from nbengine.clock import VirtualClock
from nbengine.config import EngineConfig, ModelConfig
from nbengine.executor.base import Executor
from nbengine.models.byte_tokenizer import EOS, byte_tokenizer
from nbengine.models.facts import ModelFacts
from nbengine.plan import ModelRunnerOutput, NewRequestData, SchedulerOutput
from nbengine.protocol import SampledLogprobs
from nbengine.sampling_params import SamplingParams


class Share(NamedTuple):
    """What one request computes in a step. context: tokens computed before it, whose keys and values are read."""

    tokens: int
    context: int
    is_prefill: bool  # of its prompt, or of what a preemption lost; else one token of decode


class SimulatedRequest:
    """token_ids: prompt and output so far. num_given: how many of them the scheduler told."""

    __slots__ = ("num_computed", "num_given", "num_prompt_tokens", "request_id", "sampling_params", "token_ids")

    def __init__(self, new: NewRequestData) -> None:
        self.request_id = new.request_id
        self.sampling_params: SamplingParams = new.sampling_params
        self.token_ids = list(new.token_ids)
        self.num_prompt_tokens = new.num_prompt_tokens
        self.num_given = len(self.token_ids)
        self.num_computed = new.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


class SimulatedExecutor(Executor):
    """To simulate something else, subclass: the numbers, `step_seconds`, `next_token`.

    As they stand, the numbers are of a model of 8 billion parameters in bfloat16, grouped-query attention with 8 KV heads
    of 128 in 32 layers, on a device that reads 2 TB and computes 300 TFLOP a second. Tokens are bytes: prompts may be text.
    """

    base_s = 0.008  # each step: every weight is read once
    token_s = 55e-6  # each token: it passes every weight
    context_token_s = 65e-9  # each token of context: its keys and values are read
    kv_bytes_per_token = 131_072
    kv_memory_bytes = 16 << 30
    max_len = 32_768

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.clock: VirtualClock = VirtualClock()
        self.requests: dict[str, SimulatedRequest] = {}

    def step_seconds(self, batch: Sequence[Share]) -> float:
        """How long a step takes. Plain sums: nothing overlaps, as if weights, tokens and context came one after another."""
        tokens, context = sum(share.tokens for share in batch), sum(share.context for share in batch)
        return self.base_s + self.token_s * tokens + self.context_token_s * context

    def next_token(self, request: SimulatedRequest) -> int:
        """A letter that follows from the token before it, its place and the seed: no end comes before max_tokens."""
        text = f"{request.sampling_params.seed}:{request.token_ids[-1]}:{len(request.token_ids)}"
        return ord("a") + crc32(text.encode()) % 26

    @classmethod
    def model_facts(cls, model: ModelConfig) -> ModelFacts:
        return ModelFacts(max_len=cls.max_len, vocab_size=EOS + 1, eos_token_ids=[EOS])

    @classmethod
    def load_tokenizer(cls, model: ModelConfig) -> Any:
        return byte_tokenizer()

    @property
    def kv_bytes_per_block(self) -> int:
        return self.kv_bytes_per_token * self.config.cache.block_size

    def available_kv_memory(self) -> int:
        return self.kv_memory_bytes

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Nothing to allocate: the blocks hold nothing."""

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self._take(plan)
        batch, sampled, logprobs = [], [], []
        for request_id, tokens in plan.num_scheduled_tokens.items():
            request = self.requests[request_id]
            end = request.num_computed + tokens
            is_prefill = tokens > 1 or end < len(request.token_ids) or end <= request.num_prompt_tokens
            batch.append(Share(tokens, request.num_computed, is_prefill))
            chosen = [self.next_token(request)] if end == len(request.token_ids) else []
            sampled.append(chosen)
            logprobs.append(self.logprobs(request, chosen))
            request.token_ids += chosen
        seconds = self.step_seconds(batch) if batch else 0.0
        self.clock.advance(seconds)
        return ModelRunnerOutput(
            request_ids=list(plan.num_scheduled_tokens), sampled_token_ids=sampled, logprobs=logprobs, forward_s=seconds
        )

    def logprobs(self, request: SimulatedRequest, chosen: list[int]) -> list[SampledLogprobs] | None:
        """The rule leaves no choice: its token has all the probability."""
        if request.sampling_params.logprobs is None:
            return None
        return [SampledLogprobs([token], [0.0], 1) for token in chosen]

    def _take(self, plan: SchedulerOutput) -> None:
        for request_id in [*plan.finished_req_ids, *plan.preempted_req_ids]:
            self.requests.pop(request_id, None)
        for new in [*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs]:
            self.requests[new.request_id] = SimulatedRequest(new)
        cached = plan.scheduled_cached_reqs
        for place, (request_id, computed) in enumerate(zip(cached.request_ids, cached.num_computed_tokens)):
            request = self.requests[request_id]
            request.num_computed = computed
            del request.token_ids[max(computed + 1, request.num_given) :]  # of a step that is run again
            if cached.next_token_ids:
                request.token_ids[computed : computed + 1] = [cached.next_token_ids[place]]  # someone may have edited it

    def fork(self, config: EngineConfig) -> Executor:
        twin = type(self)(config)
        twin.clock.set_back(self.clock.now())
        return twin

    def forget_requests(self) -> None:
        self.requests.clear()
