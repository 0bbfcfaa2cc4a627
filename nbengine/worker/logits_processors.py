"""What changes logits before a token is chosen: rules about single tokens, and penalties for tokens seen before.

All work in place on (S, V) float32 logits and touch only the rows, and mostly only the tokens, that they concern. Token ids
outside the vocabulary are ignored: the front refuses them when the request is added.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbengine.worker.sampling_table import Penalties, RestrictedRow

_NEVER = float("-inf")


def restrict(logits: Tensor, rows: list[RestrictedRow]) -> None:
    """Apply each row's rules, in vLLM's order: allowed tokens, bad words, min_tokens, bias. logits: (S, V)."""
    vocabulary = logits.shape[1]
    for row in rows:
        line, params = logits[row.index], row.info.sampling_params
        if allowed := _in_range(params.allowed_token_ids or [], vocabulary):
            kept = line[allowed].clone()
            line.fill_(_NEVER)
            line[allowed] = kept
        if banned := _bad_endings(params.bad_words_token_ids, row.output_ids.tolist()):
            line[_in_range(banned, vocabulary)] = _NEVER
        if len(row.output_ids) < params.min_tokens:
            ends = params.stop_token_ids + ([] if row.info.eos_token_id is None else [row.info.eos_token_id])
            line[_in_range(ends, vocabulary)] = _NEVER
        if params.logit_bias:
            tokens = _in_range(params.logit_bias, vocabulary)
            line[tokens] += torch.tensor([params.logit_bias[t] for t in tokens], dtype=line.dtype, device=line.device)


def _in_range(token_ids: Iterable[int], vocabulary: int) -> list[int]:
    return [token for token in token_ids if 0 <= token < vocabulary]


def _bad_endings(words: list[list[int]], output_ids: list[int]) -> list[int]:
    """The tokens that would complete a forbidden sequence. Only what was put out counts, not the prompt."""
    return [
        word[-1]
        for word in words
        if word and len(output_ids) >= len(word) - 1 and output_ids[len(output_ids) - len(word) + 1 :] == word[:-1]
    ]


def penalise(logits: Tensor, penalties: Penalties) -> None:
    """Repetition, then frequency and presence penalties, on the tokens that occur. logits: (S, V), contiguous.

    repetition (Keskar et al. 2019): logits of tokens in prompt or output are divided by it where positive, multiplied where
    negative. frequency, presence (OpenAI's definition): c * frequency + presence is subtracted from tokens that were put out
    c times.
    """
    vocabulary, flat = logits.shape[1], logits.view(-1)
    with_repetition = np.flatnonzero(penalties.repetition != 1)
    if len(with_repetition):
        places = [np.unique(penalties.token_ids[p]) + penalties.index[p] * vocabulary for p in with_repetition]
        factor = _to(logits, np.repeat(penalties.repetition[with_repetition], [len(p) for p in places]))
        index = _to(logits, np.concatenate(places))
        values = flat[index]
        flat[index] = torch.where(values > 0, values / factor, values * factor)
    with_counts = np.flatnonzero((penalties.frequency != 0) | (penalties.presence != 0))
    if len(with_counts):
        places, amounts = [], []
        for p in with_counts:
            tokens, counts = np.unique(penalties.output_ids[p], return_counts=True)
            places.append(tokens + penalties.index[p] * vocabulary)
            amounts.append(counts.astype(np.float32) * penalties.frequency[p] + penalties.presence[p])
        flat[_to(logits, np.concatenate(places))] -= _to(logits, np.concatenate(amounts))


def _to(logits: Tensor, array: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(array).to(logits.device)
