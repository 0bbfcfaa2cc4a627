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

from nbengine.worker.input_batch import Int32, Int64
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
        # a token that occurs twice is written twice, with the same value
        places = _places(penalties.token_ids, penalties.index, with_repetition, vocabulary)
        lengths = [len(penalties.token_ids[p]) for p in with_repetition]
        factor = _to(logits, np.repeat(penalties.repetition[with_repetition], lengths))
        index = _to(logits, places)
        values = flat[index]
        flat[index] = torch.where(values > 0, values / factor, values * factor)
    with_counts = np.flatnonzero((penalties.frequency != 0) | (penalties.presence != 0))
    if len(with_counts):
        places = _places(penalties.output_ids, penalties.index, with_counts, vocabulary)
        places, counts = np.unique(places, return_counts=True)
        row_of = np.empty(logits.shape[0], np.int64)
        row_of[penalties.index] = np.arange(len(penalties.index))
        owner = row_of[places // vocabulary]
        amounts = counts.astype(np.float32) * penalties.frequency[owner] + penalties.presence[owner]
        flat[_to(logits, places)] -= _to(logits, amounts)


def _places(token_ids: list[Int32], index: Int64, which: Int64, vocabulary: int) -> Int64:
    """Where the tokens of the penalised rows `which` lie in the flattened logits, repeats included."""
    return np.concatenate([token_ids[p] + index[p] * vocabulary for p in which])


def _to(logits: Tensor, array: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(array).to(logits.device)
