"""One step of the model: the plan's requests as one flat batch through the model, and one call of the sampler.

The runner trusts the plan and nothing else. It may be interrupted anywhere; the same plan, or another, can be run next.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from nbengine_kernels import Kernels
from nbengine_kernels.pages import own_pages
from numpy.typing import NDArray
from torch import Tensor

from nbengine.models.interface import FlatBatch, KVShape, LayerCache, PagedModel
from nbengine.plan import BatchTensors, ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import SampledLogprobs
from nbengine.worker.decode_graphs import DecodeGraphs
from nbengine.worker.input_batch import InputBatch, Int64, StepInputs
from nbengine.worker.sampler import Sampled, Sampler, gather_logprobs
from nbengine.worker.sampling_table import SamplingTable

NUM_ALTERNATIVES = 5  # tokens a sampled position that an observer is told of


class RunnerLimits(NamedTuple):
    """The sizes that buffers are made for: requests, tokens a sequence, tokens a step, tokens a block."""

    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    block_size: int


class ModelRunner:
    """Owns the worker's copy of the requests, and runs the model over the KV cache that it is given."""

    def __init__(
        self, model: PagedModel, kernels: Kernels, limits: RunnerLimits, graphs: DecodeGraphs | None = None
    ) -> None:
        self.model, self.limits, self.graphs = model, limits, graphs
        self.caches: list[LayerCache] = []
        self.observed = False
        self._sampler = Sampler(kernels)
        self._last: tuple[StepInputs, Sampled | None] | None = None
        self.forget_requests()

    def forget_requests(self) -> None:
        """Drop every request, whatever state an interrupted step may have left."""
        limits = self.limits
        self.batch = InputBatch(
            limits.max_num_seqs,
            limits.max_model_len,
            limits.max_num_batched_tokens,
            limits.block_size,
            pinned=self.model.device.type == "cuda",
        )
        self.sampling = SamplingTable(limits.max_num_seqs)

    # -------------------------------------------------------------------------------------------------------- one step

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run the plan. The gradient mode is a thread's own, so it is set here, on every entry."""
        with torch.inference_mode():
            started = time.perf_counter()
            self._apply(plan)
            if not plan.num_scheduled_tokens:
                return ModelRunnerOutput(request_ids=[], sampled_token_ids=[])
            inputs = self.batch.step_inputs(plan)
            prompt = self._prompt_positions(inputs)
            ends: Int64 = inputs.query_start_loc[1:][inputs.samples].astype(np.int64) - 1  # (S,)
            flat = self._to_device(inputs, np.concatenate([ends, *(rows for _, rows, _ in prompt)]))
            prepared = time.perf_counter()
            logits = self._forward(flat)  # (S + prompt positions, V)
            self._wait()
            forwarded = time.perf_counter()
            sampled = self._sample(inputs, logits[: len(ends)])
            prompt_logprobs = self._prompt_logprobs(inputs, prompt, logits[len(ends) :])
            self._wait()
            done = time.perf_counter()
        self._last = (inputs, sampled) if self.observed else None
        output = _output(inputs, sampled)
        output.prompt_logprobs = prompt_logprobs
        output.prepare_s, output.forward_s, output.sample_s = prepared - started, forwarded - prepared, done - forwarded
        return output

    def _apply(self, plan: SchedulerOutput) -> None:
        self.batch.apply(plan)
        for new in (*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs):
            row = self.batch.row_of[new.request_id]
            info = self.batch.requests[row]
            assert info is not None
            self.sampling.set(row, info)

    def _to_device(self, inputs: StepInputs, logits_rows: Int64) -> FlatBatch:
        device = self.model.device

        def tensor(array: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)  # on a CPU: the array itself

        return FlatBatch(
            token_ids=tensor(inputs.token_ids),
            positions=tensor(inputs.positions),
            slot_mapping=tensor(inputs.slot_mapping),
            query_start_loc=tensor(inputs.query_start_loc),
            seq_lens=tensor(inputs.seq_lens),
            block_tables=tensor(inputs.block_tables),
            logits_rows=tensor(logits_rows),
        )

    def _forward(self, flat: FlatBatch) -> Tensor:
        logits = self.graphs.forward(flat, self.caches) if self.graphs is not None else None
        return self.model.forward(flat, self.caches) if logits is None else logits

    def _sample(self, inputs: StepInputs, logits: Tensor) -> Sampled | None:
        """logits: (S, V). None if the step reaches no request's end."""
        if not inputs.samples.any():
            return None
        rows = inputs.rows[inputs.samples]
        lengths = inputs.seq_lens[inputs.samples].astype(np.int64)
        wanted = self.sampling.batch(rows, lengths, self.batch.token_ids, self.batch.requests)
        sampled = self._sampler.sample(logits, wanted, num_alternatives=NUM_ALTERNATIVES if self.observed else 0)
        self.batch.keep_sampled(rows, lengths, sampled.tokens)
        return sampled

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    # ------------------------------------------------------------------------------------------------ prompt logprobs

    def _prompt_positions(self, inputs: StepInputs) -> list[tuple[int, Int64, Int64]]:
        """For each request that asks for prompt log probabilities: its index in the step, the rows of the flat batch
        whose logits predict a prompt token, and those tokens."""
        found = []
        for i in np.flatnonzero(self.sampling.columns["prompt_logprobs"][inputs.rows] >= 0).tolist():
            row = inputs.rows[i]
            info = self.batch.requests[row]
            assert info is not None
            begin, end = int(inputs.query_start_loc[i]), int(inputs.query_start_loc[i + 1])
            first = int(inputs.seq_lens[i]) - (end - begin)  # position of the first token of the step
            last = min(int(inputs.seq_lens[i]), info.num_prompt_tokens - 1)
            if first < last:
                targets = self.batch.token_ids[row, first + 1 : last + 1].astype(np.int64)
                found.append((i, np.arange(begin, begin + last - first), targets))
        return found

    def _prompt_logprobs(
        self, inputs: StepInputs, prompt: list[tuple[int, Int64, Int64]], logits: Tensor
    ) -> dict[str, list[SampledLogprobs]]:
        """This step's part of each prompt's log probabilities, in order of position, from position 1 on."""
        made: dict[str, list[SampledLogprobs]] = {}
        start = 0
        for i, rows, targets in prompt:
            info = self.batch.requests[inputs.rows[i]]
            assert info is not None and info.sampling_params.prompt_logprobs is not None
            part = logits[start : start + len(rows)].log_softmax(dim=-1)
            counts = np.full(len(rows), info.sampling_params.prompt_logprobs, np.int64)
            made[info.request_id] = gather_logprobs(part, targets, counts)
            start += len(rows)
        return made

    # ---------------------------------------------------------------------------------------------------- for observers

    def batch_tensors(self) -> BatchTensors | None:
        """What went into the last step and its likeliest tokens; None if it was not observed."""
        if self._last is None:
            return None
        inputs, sampled = self._last
        made = BatchTensors(
            token_ids=inputs.token_ids.tobytes(),
            positions=inputs.positions.tobytes(),
            slot_mapping=inputs.slot_mapping.astype(np.int32).tobytes(),
            query_start_loc=inputs.query_start_loc.tobytes(),
            seq_lens=inputs.seq_lens.tobytes(),
        )
        if sampled is not None and sampled.top_token_ids is not None and sampled.top_probs is not None:
            count = made.num_alternatives = sampled.top_token_ids.shape[1]
            token_ids = np.full((len(inputs.rows), count), -1, np.int32)
            probs = np.zeros((len(inputs.rows), count), np.float32)
            token_ids[inputs.samples], probs[inputs.samples] = sampled.top_token_ids, sampled.top_probs
            made.top_token_ids, made.top_probs = token_ids.tobytes(), probs.tobytes()
        return made

    # ------------------------------------------------------------------------------------------------------- profiling

    def run_dummy(self, num_tokens: int, caches: list[LayerCache], num_layers: int | None = None) -> None:
        """One forward pass and greedy choice over made-up tokens, to see how much memory a full step takes.

        The tokens belong to as many requests as max_num_seqs allows, all of whose slots lie in the first block.
        """
        limits = self.limits
        requests = max(1, min(limits.max_num_seqs, num_tokens))
        counts = np.full(requests, num_tokens // requests, np.int64)
        counts[: num_tokens % requests] += 1
        counts = np.minimum(counts, limits.max_model_len)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        tokens = int(starts[-1])
        positions = np.arange(tokens) - np.repeat(starts[:-1], counts)
        width = -(-int(counts.max()) // limits.block_size)
        inputs = StepInputs(
            request_ids=[],
            rows=np.zeros(requests, np.int64),
            token_ids=np.zeros(tokens, np.int32),
            positions=positions.astype(np.int32),
            slot_mapping=np.full(tokens, -1, np.int64),
            query_start_loc=starts,
            seq_lens=counts.astype(np.int32),
            block_tables=np.zeros((requests, width), np.int32),
            samples=np.ones(requests, np.bool_),
        )
        with torch.inference_mode():
            logits = self.model.forward(
                self._to_device(inputs, starts[1:].astype(np.int64) - 1), caches, num_layers=num_layers
            )
            logits.argmax(dim=-1)
            self._wait()


def allocate_caches(
    shapes: list[KVShape], num_blocks: int, block_size: int, *, device: torch.device, dtype: torch.dtype
) -> list[LayerCache]:
    """The KV cache: for every layer a key and a value of (num_blocks, num_kv_heads, block_size, head_dim), zero.

    On a CPU the system hands out zero pages as they are first written, so blocks that are never used cost no memory.
    """
    sizes = [(2, num_blocks, shape.num_kv_heads, block_size, shape.head_dim) for shape in shapes]
    counts = [math.prod(size) for size in sizes]
    make = own_pages if device.type == "cpu" else partial(torch.zeros, device=device)
    parts = torch.split(make((sum(counts),), dtype=dtype), counts)
    caches = [LayerCache(*part.view(size)) for part, size in zip(parts, sizes)]
    return caches


def _output(inputs: StepInputs, sampled: Sampled | None) -> ModelRunnerOutput:
    """Spread the sampled rows over the plan's requests."""
    tokens: list[list[int]] = [[] for _ in inputs.request_ids]
    logprobs: list[list[SampledLogprobs] | None] | None = None
    if sampled is not None:
        places = np.flatnonzero(inputs.samples).tolist()
        for place, token in zip(places, sampled.tokens.tolist()):
            tokens[place] = [token]
        if sampled.logprobs is not None:
            logprobs = [None] * len(tokens)
            for place, entry in zip(places, sampled.logprobs):
                logprobs[place] = None if entry is None else [entry]
    return ModelRunnerOutput(request_ids=inputs.request_ids, sampled_token_ids=tokens, logprobs=logprobs)
