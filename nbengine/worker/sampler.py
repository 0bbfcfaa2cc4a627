"""From logits to tokens, a whole batch in one call.

Order as in vLLM v1: log probabilities of the raw logits; rules about single tokens; penalties; greedy choice, or
temperature, min-p, top-k, top-p and a draw. The draw inverts the distribution function with one number a row, a function
of (seed, output index) alone (`random_draws`), so the sampler has no state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from nbengine_kernels import Kernels
from numpy.typing import NDArray
from torch import Tensor

from nbengine.protocol import SampledLogprobs
from nbengine.worker.logits_processors import penalise, restrict
from nbengine.worker.random_draws import uniform
from nbengine.worker.sampling_table import SamplingBatch


@dataclass(slots=True)
class Sampled:
    """tokens: (S,). logprobs: one entry a row, None where a row asks for none; None if no row does."""

    tokens: NDArray[np.int64]
    logprobs: list[SampledLogprobs | None] | None = None
    top_token_ids: NDArray[np.int32] | None = None  # (S, K), likeliest first
    top_probs: NDArray[np.float32] | None = None  # (S, K), of the raw logits


class Sampler:
    """Chooses tokens. Its only field is the kernels that it uses."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def sample(self, logits: Tensor, batch: SamplingBatch, *, num_alternatives: int = 0) -> Sampled:
        """logits: (S, V) float32, contiguous; changed in place. num_alternatives: K likeliest tokens to report."""
        result = Sampled(tokens=np.empty(0, np.int64))
        if num_alternatives:
            ids, probs = self._kernels.likeliest(logits, min(num_alternatives, logits.shape[1]))
            result.top_token_ids, result.top_probs = ids.to(torch.int32).cpu().numpy(), probs.cpu().numpy()
        changed = bool(batch.restricted) or batch.penalties is not None
        raw = None
        if batch.logprobs is not None:
            wanted = np.flatnonzero(batch.logprobs >= 0)
            raw = logits[torch.from_numpy(wanted).to(logits.device)].log_softmax(dim=-1)  # (W, V)
        if batch.restricted:
            restrict(logits, batch.restricted)
        if batch.penalties is not None:
            penalise(logits, batch.penalties)
        result.tokens = self._choose(logits, batch, None if changed else _sure(result))
        if raw is not None and batch.logprobs is not None:
            entries = gather_logprobs(raw, result.tokens[wanted], batch.logprobs[wanted])
            result.logprobs = [None] * len(result.tokens)
            for row, entry in zip(wanted, entries):
                result.logprobs[row] = entry
        return result

    def _choose(self, logits: Tensor, batch: SamplingBatch, likeliest: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """(S, V) -> (S,). likeliest: (S,), if it is known."""
        if batch.temperature is not None and (batch.temperature > 0).all():
            return self._draw(logits, batch, np.arange(len(batch.temperature)))
        tokens = _likeliest(logits) if likeliest is None else likeliest
        if batch.temperature is not None:
            drawn = np.flatnonzero(batch.temperature > 0)
            tokens[drawn] = self._draw(logits[torch.from_numpy(drawn).to(logits.device)], batch, drawn)
        return tokens

    def _draw(self, logits: Tensor, batch: SamplingBatch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """logits: (D, V), of the rows of `batch` in `rows` (D,). Returns (D,)."""
        device = logits.device

        def column(values: NDArray[np.generic] | None) -> Tensor | None:
            return None if values is None else torch.from_numpy(values[rows]).to(device)

        temperature = column(batch.temperature)
        assert temperature is not None
        logits.div_(temperature[:, None])
        if batch.top_k is not None or batch.top_p is not None or batch.min_p is not None:
            self._kernels.sample_filter(logits, column(batch.top_k), column(batch.top_p), column(batch.min_p), out=logits)
        numbers = torch.from_numpy(uniform(batch.seeds[rows], batch.num_output[rows])).to(device)  # (D,) float64
        return _numpy(invert(logits.softmax(dim=-1), numbers))


def invert(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """The token at which the running sum of probabilities, in order of token id, first exceeds number * total.

    probabilities: (D, V) float32, need not sum to 1 exactly. numbers: (D,) float64 in [0, 1). Returns (D,) int64; never a
    token of probability 0.
    """
    sums = probabilities.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1:].contiguous()
    found = torch.searchsorted(sums, numbers[:, None] * total, right=True)
    last = torch.searchsorted(sums, total)  # the last token of probability > 0
    return torch.minimum(found, last).clamp_(max=probabilities.shape[1] - 1)[:, 0]  # sums that are no numbers find no place


def gather_logprobs(logprobs: Tensor, tokens: NDArray[np.int64], counts: NDArray[np.int64]) -> list[SampledLogprobs]:
    """The chosen tokens' log probabilities and ranks, and those of each row's `counts` likeliest tokens.

    logprobs: (W, V) float32. tokens, counts: (W,).
    """
    chosen = logprobs.gather(1, torch.from_numpy(tokens).to(logprobs.device)[:, None])  # (W, 1)
    ranks = ((logprobs > chosen).sum(dim=-1) + 1).tolist()
    top = torch.topk(logprobs, min(int(counts.max()), logprobs.shape[1]), dim=-1)
    values, indices, own = top.values.tolist(), top.indices.tolist(), chosen[:, 0].tolist()
    return [
        SampledLogprobs([token, *indices[i][:count]], [own[i], *values[i][:count]], ranks[i])
        for i, (token, count) in enumerate(zip(tokens.tolist(), counts.tolist()))
    ]


def _sure(result: Sampled) -> NDArray[np.int64] | None:
    """(S,), the greedy choice where the alternatives show it: they leave open which of two equal ones is the first, and say
    nothing of rows that are no numbers."""
    ids, probs = result.top_token_ids, result.top_probs
    if ids is None or probs is None or probs.shape[1] < 2 or not (probs[:, 0] > probs[:, 1]).all():
        return None
    return ids[:, 0].astype(np.int64)


def _likeliest(logits: Tensor) -> NDArray[np.int64]:
    """(S, V) -> (S,). On a CPU by numpy, whose argmax compares whole vectors: six times as fast as torch's."""
    found: NDArray[np.int64] = _numpy(logits.argmax(dim=-1)) if logits.is_cuda else logits.numpy().argmax(axis=-1)
    return found


def _numpy(tensor: Tensor) -> NDArray[np.int64]:
    """To the host; from a GPU through page-locked memory, waiting for this copy alone."""
    if tensor.is_cuda:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        arrived.synchronize()
        tensor = host
    array: NDArray[np.int64] = tensor.numpy()
    return array
