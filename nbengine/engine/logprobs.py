"""The log probabilities of a request's tokens, as the user sees them."""

from __future__ import annotations

from nbengine.engine.detokenizer import Tokenizer, decode
from nbengine.outputs import Logprob
from nbengine.protocol import SampledLogprobs


class LogprobsCollector:
    """One dict a generated token: token id -> Logprob, the chosen token first, then the likeliest in order."""

    def __init__(self, tokenizer: Tokenizer | None, num_logprobs: int) -> None:
        self._tokenizer = tokenizer
        self._num_logprobs = num_logprobs
        self._texts: dict[int, str] = {}
        self.positions: list[dict[int, Logprob]] = []

    def append(self, sampled: SampledLogprobs) -> None:
        self.positions.append(self._position(sampled))

    def convert(self, sampled: list[SampledLogprobs]) -> list[dict[int, Logprob]]:
        """The same for positions that are kept elsewhere: a prompt's."""
        return [self._position(entry) for entry in sampled]

    def _position(self, sampled: SampledLogprobs) -> dict[int, Logprob]:
        chosen, likeliest = sampled.token_ids[0], sampled.token_ids[1 : 1 + self._num_logprobs]
        position = {chosen: Logprob(sampled.logprobs[0], sampled.rank or None, self._text(chosen))}
        for rank, (token_id, logprob) in enumerate(zip(likeliest, sampled.logprobs[1:]), start=1):
            if token_id != chosen:
                position[token_id] = Logprob(logprob, rank, self._text(token_id))
        return position

    def truncate(self, num_tokens: int) -> None:
        del self.positions[num_tokens:]

    def cumulative(self, token_ids: list[int]) -> float:
        """The log probability of these tokens together: the sum of the chosen ones'."""
        return sum(position[token_id].logprob for token_id, position in zip(token_ids, self.positions))

    def _text(self, token_id: int) -> str | None:
        if self._tokenizer is None:
            return None
        if token_id not in self._texts:
            self._texts[token_id] = decode(self._tokenizer, [token_id])
        return self._texts[token_id]
