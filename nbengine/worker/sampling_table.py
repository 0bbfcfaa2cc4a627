"""What the sampler needs to know of each running request, in columns, so that a whole batch is set up at once."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbengine.sampling_params import SamplingParams
from nbengine.worker.input_batch import Int64, RequestInfo
from nbengine.worker.random_draws import seed_bits

Float32 = NDArray[np.float32]

_COLUMNS: list[tuple[str, type]] = [
    ("temperature", np.float32),
    ("top_k", np.int64),
    ("top_p", np.float32),
    ("min_p", np.float32),
    ("repetition", np.float32),
    ("presence", np.float32),
    ("frequency", np.float32),
    ("seed", np.uint64),
    ("logprobs", np.int64),  # how many beside the chosen one; -1 = off
    ("prompt_logprobs", np.int64),  # the same for the prompt's tokens
    ("num_prompt_tokens", np.int64),
    ("restricted", np.bool_),  # has a rule of its own about single tokens: see logits_processors
    ("plain", np.bool_),  # greedy, and nothing else is asked for
]


@dataclass(slots=True)
class SamplingBatch:
    """How to sample S rows of logits. A part that no row asks for is None, and the sampler skips it."""

    num_output: Int64  # (S,) tokens that the request has put out so far: the index of the one to draw
    seeds: NDArray[np.uint64]  # (S,)
    temperature: Float32 | None = None  # (S,), 0 = greedy; None: all are
    top_k: Int64 | None = None  # (S,), 0 = off
    top_p: Float32 | None = None  # (S,), 1 = off
    min_p: Float32 | None = None  # (S,), 0 = off
    penalties: Penalties | None = None
    logprobs: Int64 | None = None  # (S,), -1 = off
    restricted: list[RestrictedRow] = field(default_factory=list)


@dataclass(slots=True)
class Penalties:
    """The rows with penalties. repetition, presence, frequency: (P,), as in SamplingParams."""

    index: Int64  # (P,) row of the logits
    repetition: Float32
    presence: Float32
    frequency: Float32
    token_ids: list[NDArray[np.int32]]  # P times: prompt and output
    output_ids: list[NDArray[np.int32]]  # P times: output


@dataclass(slots=True)
class RestrictedRow:
    """A row with rules about single tokens: bias, allowed tokens, bad words, end tokens that come too early."""

    index: int  # row of the logits
    info: RequestInfo
    output_ids: NDArray[np.int32]


class SamplingTable:
    """One column a parameter, one row a request (the rows of InputBatch)."""

    def __init__(self, rows: int) -> None:
        self.columns: dict[str, NDArray[Any]] = {name: np.zeros(rows, kind) for name, kind in _COLUMNS}

    def set(self, row: int, info: RequestInfo) -> None:
        """Write a request's parameters into its row."""
        if row >= len(self.columns["seed"]):
            self.columns = {name: np.concatenate([old, np.zeros(row + 1, old.dtype)]) for name, old in self.columns.items()}
        params, columns = info.sampling_params, self.columns
        columns["temperature"][row] = 0.0 if params.greedy else params.temperature
        columns["top_k"][row], columns["top_p"][row], columns["min_p"][row] = params.top_k, params.top_p, params.min_p
        columns["repetition"][row] = params.repetition_penalty
        columns["presence"][row], columns["frequency"][row] = params.presence_penalty, params.frequency_penalty
        seed = params.seed if params.seed is not None else zlib.crc32(info.request_id.encode())
        columns["seed"][row] = seed_bits(seed)
        columns["logprobs"][row] = -1 if params.logprobs is None else params.logprobs
        columns["prompt_logprobs"][row] = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        columns["num_prompt_tokens"][row] = info.num_prompt_tokens
        columns["restricted"][row] = restricted = _is_restricted(params)
        penalised = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
        columns["plain"][row] = params.greedy and params.logprobs is None and not restricted and not penalised

    def batch(
        self, rows: Int64, lengths: Int64, token_ids: NDArray[np.int32], requests: list[RequestInfo | None]
    ) -> SamplingBatch:
        """The parameters of the S requests in `rows`, whose known tokens are token_ids[row, :length]."""
        columns = self.columns
        prompts = columns["num_prompt_tokens"][rows]
        made = SamplingBatch(num_output=lengths - prompts, seeds=columns["seed"][rows])
        if columns["plain"][rows].all():
            return made
        temperature = columns["temperature"][rows]
        if temperature.any():
            made.temperature = temperature
            top_k, top_p, min_p = columns["top_k"][rows], columns["top_p"][rows], columns["min_p"][rows]
            made.top_k = top_k if top_k.any() else None
            made.top_p = top_p if (top_p < 1).any() else None
            made.min_p = min_p if min_p.any() else None
        if (logprobs := columns["logprobs"][rows]).max(initial=-1) >= 0:
            made.logprobs = logprobs
        made.penalties = self._penalties(rows, lengths, prompts, token_ids)
        for index in np.flatnonzero(columns["restricted"][rows]):
            row = rows[index]
            info = requests[row]
            assert info is not None
            made.restricted.append(RestrictedRow(int(index), info, token_ids[row, prompts[index] : lengths[index]]))
        return made

    def _penalties(self, rows: Int64, lengths: Int64, prompts: Int64, token_ids: NDArray[np.int32]) -> Penalties | None:
        repetition, presence, frequency = (self.columns[name][rows] for name in ("repetition", "presence", "frequency"))
        index = np.flatnonzero((repetition != 1) | (presence != 0) | (frequency != 0))
        if not len(index):
            return None
        return Penalties(
            index=index,
            repetition=repetition[index],
            presence=presence[index],
            frequency=frequency[index],
            token_ids=[token_ids[rows[i], : lengths[i]] for i in index],
            output_ids=[token_ids[rows[i], prompts[i] : lengths[i]] for i in index],
        )


def _is_restricted(params: SamplingParams) -> bool:
    return bool(params.min_tokens or params.logit_bias or params.allowed_token_ids is not None or params.bad_words_token_ids)
