"""Drives a ModelRunner with plans made by hand: a scheduler small enough to be believed.

Blocks are handed out in a shuffled order, so that no test passes because tables happen to be consecutive.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from nbengine_kernels import kernels_for

from nbengine.config import ModelConfig
from nbengine.models.loader import load_config, load_model, max_len_of
from nbengine.plan import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput
from nbengine.protocol import SampledLogprobs
from nbengine.sampling_params import SamplingParams
from nbengine.worker.model_runner import ModelRunner, RunnerLimits, allocate_caches


@dataclass
class RigRequest:
    request_id: str
    prompt: list[int]
    params: SamplingParams
    eos_token_id: int | None = None
    output: list[int] = field(default_factory=list)
    logprobs: list[SampledLogprobs] = field(default_factory=list)
    prompt_logprobs: list[SampledLogprobs] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    known: bool = False  # whether the runner has been told of it

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


class Rig:
    """A runner, its KV cache and the requests that run on it."""

    def __init__(self, path: Path | str, *, dtype: str = "float32", num_blocks: int = 400, block_size: int = 4) -> None:
        config = ModelConfig(model=str(path), dtype=dtype)  # type: ignore[arg-type]
        max_len = max_len_of(load_config(Path(path)))
        self.model = load_model(config, max_positions=max_len)
        limits = RunnerLimits(8, max_len, 2048, block_size)
        self.runner = ModelRunner(self.model, kernels_for(self.model.device, self.model.dtype), limits)
        self.runner.caches = allocate_caches(
            self.model.kv_shapes, num_blocks, block_size, device=self.model.device, dtype=self.model.dtype
        )
        self.block_size = block_size
        self.free = list(range(1, num_blocks))
        random.Random(7).shuffle(self.free)
        self.requests: dict[str, RigRequest] = {}
        self.step = 0
        self._finished: list[str] = []
        self._preempted: list[str] = []

    def add(self, request_id: str, prompt: list[int], params: SamplingParams, eos: int | None = None) -> RigRequest:
        request = RigRequest(request_id, list(prompt), params, eos)
        self.requests[request_id] = request
        return request

    def finish(self, request_id: str) -> None:
        self.free += self.requests.pop(request_id).blocks
        self._finished.append(request_id)

    def preempt(self, request_id: str) -> None:
        request = self.requests[request_id]
        self.free += request.blocks
        request.blocks, request.computed, request.known = [], 0, False
        self._preempted.append(request_id)

    def plan(self, counts: dict[str, int], *, say_next: bool = True) -> SchedulerOutput:
        """A plan that gives each request so many tokens, with the blocks that they need."""
        new: list[NewRequestData] = []
        resumed: list[NewRequestData] = []
        cached = CachedRequestData([], [], [])
        for request_id, count in counts.items():
            request = self.requests[request_id]
            missing = -(-(request.computed + count) // self.block_size) - len(request.blocks)
            added = [self.free.pop() for _ in range(missing)]
            request.blocks += added
            if request.known:
                cached.request_ids.append(request_id)
                cached.new_block_ids.append(added or None)
                cached.num_computed_tokens.append(request.computed)
                if say_next:
                    cached.next_token_ids.append(request.tokens[request.computed])
                continue
            (resumed if request.output else new).append(
                NewRequestData(
                    request_id=request_id,
                    token_ids=request.tokens,
                    num_prompt_tokens=len(request.prompt),
                    sampling_params=request.params,
                    block_ids=list(request.blocks),
                    num_computed_tokens=request.computed,
                    eos_token_id=request.eos_token_id,
                )
            )
            request.known = True
        made = SchedulerOutput(
            step=self.step,
            scheduled_new_reqs=new,
            scheduled_resumed_reqs=resumed,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            preempted_req_ids=self._preempted,
            finished_req_ids=self._finished,
        )
        self.step += 1
        self._finished, self._preempted = [], []
        return made

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
        """Take a step's result, as a scheduler would."""
        assert output.request_ids == list(plan.num_scheduled_tokens)
        for i, request_id in enumerate(output.request_ids):
            request = self.requests[request_id]
            request.computed += plan.num_scheduled_tokens[request_id]
            request.output += output.sampled_token_ids[i]
            entry = output.logprobs[i] if output.logprobs is not None else None
            request.logprobs += entry or []
            request.prompt_logprobs += output.prompt_logprobs.get(request_id, [])

    def run(self, counts: dict[str, int], *, say_next: bool = True) -> ModelRunnerOutput:
        plan = self.plan(counts, say_next=say_next)
        output = self.runner.execute(plan)
        self.update(plan, output)
        return output

    def remaining(self, request_id: str) -> int:
        """Tokens known of a request and not computed yet."""
        request = self.requests[request_id]
        return len(request.tokens) - request.computed

    def generate(self, *, chunk: int = 10_000, say_next: bool = True) -> dict[str, list[int]]:
        """Step all requests together until each has put out max_tokens, prompts cut into chunks. Finishes them all."""
        outputs: dict[str, list[int]] = {}
        while self.requests:
            self.run({name: min(chunk, self.remaining(name)) for name in self.requests}, say_next=say_next)
            for name, request in list(self.requests.items()):
                if request.params.max_tokens is not None and len(request.output) >= request.params.max_tokens:
                    outputs[name] = request.output
                    self.finish(name)
        return outputs


def greedy(max_tokens: int = 8, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **options)  # type: ignore[arg-type]


def random_prompt(seed: int, length: int, vocab_size: int = 211) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, vocab_size) for _ in range(length)]


def one_thread() -> None:
    torch.set_num_threads(1)
