"""A scheduler alone on a desk: small pools, scripted tokens, no model."""

from __future__ import annotations

from typing import Any

from nbengine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreOutputs, EngineCoreRequest, FinishReason
from nbengine.sampling_params import SamplingParams
from nbengine.scheduler.decision import Decision
from nbengine.scheduler.invariants import check_invariants
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler
from nbengine.workload.schedule_trace import Sampler

EOS = 2
_CACHE_OPTIONS = CacheConfig.__struct_fields__


class Desk:
    """Drives one scheduler, and checks its books after every phase.

    usable: KV blocks that requests can hold. Further options are SchedulerConfig's and CacheConfig's.
    """

    def __init__(self, usable: int = 64, cls: type[Scheduler] = Scheduler, **options: Any) -> None:
        limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256}
        limits |= {name: value for name, value in options.items() if name not in _CACHE_OPTIONS}
        cache = {"block_size": 4} | {name: value for name, value in options.items() if name in _CACHE_OPTIONS}
        scheduler = SchedulerConfig(**limits)
        scheduler.check()
        config = EngineConfig(model=ModelConfig(), cache=CacheConfig(**cache, num_blocks=usable + 1), scheduler=scheduler)
        self.scheduler = cls(config)
        self.sampler = Sampler(1000, EOS)
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.cached: dict[str, int | None] = {}
        self.num_added = 0

    def add(self, request_id: str, prompt: int | list[int], **params: Any) -> Request:
        """A prompt of that many tokens (unlike any other request's), or of those."""
        if isinstance(prompt, int):
            prompt = [10_000 * (self.num_added + 1) + position for position in range(prompt)]
        core = {name: params.pop(name) for name in ("priority", "cache_salt", "lora_id", "lora_name") if name in params}
        request = Request(
            EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **params}),
                arrival_time=params.pop("arrival_time", float(self.num_added)),
                eos_token_id=EOS,
                **core,
            ),
            self.scheduler.max_model_len,
        )
        self.num_added += 1
        self.scheduler.add_request(request)
        return request

    def schedule(self) -> SchedulerOutput:
        plan = self.scheduler.schedule()
        check_invariants(self.scheduler)
        return plan

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        alive = {name: n for name, n in plan.num_scheduled_tokens.items() if name in self.scheduler.requests}
        requests = [self.scheduler.requests[name] for name in alive]
        return ModelRunnerOutput(
            request_ids=list(alive),
            sampled_token_ids=[
                [] if r.is_prefill_chunk else [self.sampler.token(r.request_id, r.num_output_tokens)] for r in requests
            ],
        )

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> EngineCoreOutputs:
        outputs = self.scheduler.update_from_output(plan, output)
        check_invariants(self.scheduler)
        for entry in outputs.outputs:
            self.tokens.setdefault(entry.request_id, []).extend(entry.new_token_ids)
            if entry.num_cached_tokens is not None:
                self.cached[entry.request_id] = entry.num_cached_tokens
            if entry.finish_reason is not None:
                self.reasons[entry.request_id] = entry.finish_reason
        return outputs

    def step(self) -> SchedulerOutput:
        plan = self.schedule()
        self.update(plan, self.execute(plan))
        return plan

    def run(self, limit: int = 500) -> int:
        """Step until nothing is unfinished; how many steps that took. AssertionError if it is more than `limit`."""
        for count in range(limit):
            if not self.scheduler.has_unfinished_requests():
                return count
            self.step()
        raise AssertionError(f"not finished after {limit} steps:\n{self.scheduler.describe()}")

    def explained_step(self) -> dict[str, Decision]:
        """A step, and the decision of it for each request."""
        self.scheduler.decisions = decisions = []
        self.step()
        self.scheduler.decisions = None
        assert len({d.request_id for d in decisions}) == len(decisions), "a request was decided twice"
        return {decision.request_id: decision for decision in decisions}

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting_requests()]

    @property
    def num_free(self) -> int:
        return self.scheduler.kv.pool.num_free
