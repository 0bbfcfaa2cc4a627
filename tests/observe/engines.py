"""Small engines without a model: the real scheduler, and tokens that follow from the request and the position alone."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np

from nbengine import LLM
from nbengine.config import EngineArgs, ModelConfig
from nbengine.engine.core import EngineCore
from nbengine.executor.base import Executor, ModelFacts
from nbengine.plan import BatchTensors, ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreRequest
from nbengine.sampling_params import SamplingParams
from tests.scripted import ByteTokenizer


def token_at(request_id: str, position: int, vocab: int = 256) -> int:
    return zlib.crc32(f"{request_id}/{position}".encode()) % vocab


class PlainExecutor(Executor):
    """Keeps of the KV cache what can be checked: which token of which position was written into each slot."""

    block_size: int

    @classmethod
    def model_facts(cls, model: ModelConfig) -> ModelFacts:
        return ModelFacts(max_len=4096, vocab_size=260, eos_token_ids=[256])

    @classmethod
    def load_tokenizer(cls, model: ModelConfig) -> ByteTokenizer:
        return ByteTokenizer()

    @property
    def kv_bytes_per_block(self) -> int:
        return 64

    def available_kv_memory(self) -> int:
        return 1 << 20

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self.block_size = self.config.cache.block_size
        self.slots = np.full((num_blocks, self.block_size), -1, dtype=np.int64)
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.observed = False
        self.fail = False
        self.last: BatchTensors | None = None

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if self.fail:
            raise RuntimeError("the model fell over")
        computed = self._take(plan)
        sampled: list[list[int]] = []
        flat: list[int] = []
        for request_id, count in plan.num_scheduled_tokens.items():
            tokens, table = self.tokens[request_id], self.tables[request_id]
            end = computed[request_id] + count
            for position in range(computed[request_id], end):
                self.slots[table[position // self.block_size], position % self.block_size] = tokens[position]
                flat.append(tokens[position])
            for position in range(end):  # what attention would read
                assert self.slots[table[position // self.block_size], position % self.block_size] == tokens[position]
            sampled.append([token_at(request_id, end)] if end == len(tokens) else [])
            tokens += sampled[-1]
        if self.observed:
            ids = np.array(flat, dtype=np.int32).tobytes()
            self.last = BatchTensors(token_ids=ids, positions=ids, slot_mapping=ids, query_start_loc=b"", seq_lens=b"")
        return ModelRunnerOutput(request_ids=list(plan.num_scheduled_tokens), sampled_token_ids=sampled)

    def _take(self, plan: SchedulerOutput) -> dict[str, int]:
        for request_id in plan.finished_req_ids:
            self.tokens.pop(request_id, None)
        computed: dict[str, int] = {}
        for new in plan.scheduled_new_reqs + plan.scheduled_resumed_reqs:
            self.tokens[new.request_id], self.tables[new.request_id] = list(new.token_ids), list(new.block_ids)
            computed[new.request_id] = new.num_computed_tokens
        cached = plan.scheduled_cached_reqs
        for place, request_id in enumerate(cached.request_ids):
            before = computed[request_id] = cached.num_computed_tokens[place]
            self.tables[request_id] += cached.new_block_ids[place] or []
            if cached.next_token_ids:
                self.tokens[request_id][before : before + 1] = [cached.next_token_ids[place]]
        return computed

    def observe(self, on: bool) -> None:
        self.observed = on
        self.last = None

    def batch_tensors(self) -> BatchTensors | None:
        return self.last

    def copy_blocks_out(self, block_ids: list[int]) -> object | None:
        return self.slots[block_ids].copy()

    def copy_blocks_in(self, block_ids: list[int], content: Any) -> None:
        self.slots[block_ids] = content

    def forget_requests(self) -> None:
        self.tokens.clear()


def make_core(num_blocks: int = 20, block_size: int = 4, **options: Any) -> EngineCore:
    args = EngineArgs(**{"max_model_len": 64, "max_num_seqs": 6, "max_num_batched_tokens": 24} | options)
    args.block_size, args.num_gpu_blocks_override = block_size, num_blocks
    config = args.create_engine_config(4096)
    return EngineCore(config, PlainExecutor(config))


def make_llm(num_blocks: int = 20, block_size: int = 4, **options: Any) -> LLM:
    """A whole LLM over the plain executor; its tokens are bytes."""
    options = {"max_model_len": 64, "max_num_seqs": 6, "max_num_batched_tokens": 24} | options
    return LLM("plain", executor_cls=PlainExecutor, num_gpu_blocks_override=num_blocks, block_size=block_size, **options)


def request(request_id: str, prompt: list[int], max_tokens: int = 8, **more: Any) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0, **more.pop("params", {}))
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=params,
        arrival_time=more.pop("arrival_time", 0.0),
        **more,
    )


class Mess:
    """A long, random life: adds that share prefixes, aborts, resets, preemptions by want and by hand. Seeded."""

    def __init__(self, core: EngineCore, seed: int) -> None:
        self.core = core
        self.random = random.Random(seed)
        self.added = 0
        self.prefixes = [[self.random.randrange(50) for _ in range(12)] for _ in range(3)]

    def inputs(self) -> None:
        """What a person might do at a phase boundary."""
        draw = self.random.random
        while draw() < 0.4 and len(self.core.scheduler.requests) < 12:
            prefix = self.random.choice(self.prefixes)[: self.random.randrange(13)]
            own = [self.random.randrange(1000) for _ in range(self.random.randrange(1, 20))]
            name = f"r{self.added}"
            self.added += 1
            priority = self.random.randrange(3)
            self.core.add_request(
                request(name, prefix + own, self.random.randrange(1, 24), priority=priority, arrival_time=float(self.added))
            )
        alive = list(self.core.scheduler.requests)
        if alive and draw() < 0.05:
            self.core.abort_requests(self.random.sample(alive, min(len(alive), self.random.randrange(1, 3))))
        if draw() < 0.03:
            self.core.reset_prefix_cache(reset_running_requests=self.core.next_phase == "schedule" and draw() < 0.5)
