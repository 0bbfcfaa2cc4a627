"""Prompts and parameters become complete requests for the core, or are refused with the reason."""

from __future__ import annotations

import math
import operator
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from nbengine.engine.detokenizer import Tokenizer
from nbengine.engine.limits import EngineLimits
from nbengine.errors import InvalidParameterError, InvalidRequestError
from nbengine.protocol import EngineCoreRequest
from nbengine.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, {"prompt": text}, or {"prompt_token_ids": ids}; both dicts may have a "cache_salt"."""

_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}
_SEED_BITS = 48  # leaves room for child i's seed + i in a signed 64-bit number


class ParsedPrompt(msgspec.Struct):
    """A prompt as tokens, with its text where that is known."""

    token_ids: list[int]
    text: str | None = None
    cache_salt: str | None = None


class InputProcessor:
    """Turns what a user writes into EngineCoreRequests. Keeps nothing about requests but how many seeds it has drawn.

    now: the engine's time, for requests that do not say when they arrived.
    """

    def __init__(
        self, limits: EngineLimits, tokenizer: Tokenizer | None, seed: int, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._limits = limits
        self._tokenizer = tokenizer
        self._seed = seed
        self.num_seeds = 0  # the next one follows from this number and the engine's seed: so drawing can be undone
        self._now = now

    def process(
        self,
        request_id: str,
        prompt: Prompt | ParsedPrompt,
        params: SamplingParams,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
    ) -> tuple[EngineCoreRequest, str | None]:
        """The request for the core, and the prompt's text if known. `params` itself is not changed.

        Raises InvalidRequestError for a prompt that cannot run, InvalidParameterError for a parameter that does not suit
        this engine.
        """
        if not (isinstance(request_id, str) and request_id):
            raise InvalidRequestError(f"A request id is a non-empty string, got {request_id!r}.")
        parsed = prompt if isinstance(prompt, ParsedPrompt) else self.parse(prompt)
        self._check_length(len(parsed.token_ids))
        self._check_ids("The prompt", parsed.token_ids, InvalidRequestError)
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=parsed.token_ids,
            sampling_params=self._complete(params, len(parsed.token_ids)),
            arrival_time=self._now() if arrival_time is None else _seconds(arrival_time),
            eos_token_id=self._limits.eos_token_id,
            priority=_whole("priority", priority),
            cache_salt=parsed.cache_salt,
        )
        return request, parsed.text

    def parse(self, prompt: Prompt) -> ParsedPrompt:
        """Tokenise, or check token ids, of any kind of prompt."""
        if isinstance(prompt, str):
            return ParsedPrompt(self.tokenize(prompt), prompt)
        if isinstance(prompt, Mapping):
            return self._parse_mapping(prompt)
        if isinstance(prompt, bytes) or not (isinstance(prompt, Sequence) or hasattr(prompt, "__array__")):
            raise InvalidRequestError(
                f"A prompt is text, a list of token ids, or a dict with either, got {type(prompt).__name__}."
            )
        return ParsedPrompt(_token_ids(prompt))

    def parse_chat(self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> ParsedPrompt:
        """Messages through the model's chat template. `options` go to `apply_chat_template`."""
        tokenizer = self._needed_tokenizer("chat")
        for message in messages:
            if not isinstance(message, Mapping) or "role" not in message:
                raise InvalidRequestError(f'Each message is a dict with "role" and "content", got {message!r}.')
        if not messages:
            raise InvalidRequestError("A chat needs at least one message.")
        if options.get("chat_template") is None and getattr(tokenizer, "chat_template", None) is None:
            raise InvalidRequestError("This model has no chat template: give one as chat_template, or use generate.")
        plain = [
            {**message, "content": _joined(message["content"])} if "content" in message else {**message}
            for message in messages
        ]
        try:
            text = tokenizer.apply_chat_template(plain, tokenize=False, **options)
        except Exception as error:  # whatever a template, or the code that renders it, may raise
            raise InvalidRequestError(
                f"The chat template cannot render these messages: {type(error).__name__}: {error}"
            ) from error
        return ParsedPrompt(self.tokenize(text, add_special_tokens=False), text)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        try:
            return list(self._needed_tokenizer("text").encode(text, add_special_tokens=add_special_tokens))
        except (TypeError, UnicodeError) as error:  # half of a surrogate pair, for one, is no text
            raise InvalidRequestError(f"The tokenizer cannot read this text: {error}") from error

    # ------------------------------------------------------------------------------------------------------- within

    def _needed_tokenizer(self, what: str) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidRequestError(f"This engine has no tokenizer (skip_tokenizer_init), so no {what}: give token ids.")
        return self._tokenizer

    def _parse_mapping(self, prompt: Mapping[str, Any]) -> ParsedPrompt:
        if unknown := set(prompt) - _PROMPT_KEYS:
            raise InvalidRequestError(f"A prompt dict has the keys {sorted(_PROMPT_KEYS)}, got {sorted(unknown)} too.")
        text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and salt):
            raise InvalidRequestError(f"cache_salt must be a non-empty string, got {salt!r}.")
        if text is not None and not isinstance(text, str):
            raise InvalidRequestError(f'The "prompt" of a prompt dict is text, got {type(text).__name__}.')
        if ids is not None:
            return ParsedPrompt(_token_ids(ids), text, salt)
        if text is None:
            raise InvalidRequestError('A prompt dict needs "prompt" or "prompt_token_ids".')
        return ParsedPrompt(self.tokenize(text), text, salt)

    def _check_length(self, length: int) -> None:
        limits = self._limits
        if length == 0:
            raise InvalidRequestError("The prompt is empty: it must have at least one token.")
        if length + 1 <= limits.max_model_len:
            return
        message = (
            f"The prompt has {length} tokens, and with one token to generate (prompt + 1 > max) that is more than "
            f"max_model_len={limits.max_model_len}: shorten the prompt or raise max_model_len."
        )
        needed = -(-length // limits.block_size)
        if needed > limits.usable_blocks:
            message += (
                f" It would need {needed} KV blocks of {limits.block_size} tokens, and {limits.usable_blocks} are available."
            )
        raise InvalidRequestError(message)

    def _complete(self, params: SamplingParams, prompt_length: int) -> SamplingParams:
        """A copy with nothing left open: max_tokens, the seed, the model's further end tokens."""
        limits = self._limits
        self._check_params(params)
        changes: dict[str, Any] = {}
        if params.max_tokens is None:
            changes["max_tokens"] = room = limits.max_model_len - prompt_length
            changes["min_tokens"] = min(params.min_tokens, room)
        if params.seed is None and not params.greedy:
            changes["seed"] = random.Random(f"{self._seed}:{self.num_seeds}").getrandbits(_SEED_BITS)
            self.num_seeds += 1
        if limits.more_eos_token_ids and not params.ignore_eos:
            changes["stop_token_ids"] = list(dict.fromkeys([*params.stop_token_ids, *limits.more_eos_token_ids]))
        if params.prompt_logprobs is not None:
            changes["skip_reading_prefix_cache"] = True  # what is found there isn't computed, so it has no log probabilities
        if params.bad_words:
            changes["bad_words_token_ids"] = [*params.bad_words_token_ids, *self._spellings(params.bad_words)]
        if self._tokenizer is None and not params.stop:
            changes["detokenize"] = False
        return params.clone(**changes)

    def _spellings(self, words: list[str]) -> list[list[int]]:
        """Each word's tokens, as it stands at the beginning of a text and behind a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip()
            for spelling in (word, bare, f" {bare}"):
                if spelling.strip() or spelling == word:
                    found[tuple(self.tokenize(spelling, add_special_tokens=False))] = None
        return [list(ids) for ids in found if ids]

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise InvalidParameterError(f"sampling_params must be SamplingParams, got {type(params).__name__}.")
        most = self._limits.max_logprobs
        for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
            if count is not None and count > most:
                raise InvalidParameterError(f"{name} must be at most max_logprobs={most}, got {count}.")
        for name, words, instead in (
            ("stop strings", params.stop, "stop_token_ids"),
            ("bad_words", params.bad_words, "bad_words_token_ids"),
        ):
            if words and self._tokenizer is None:
                raise InvalidParameterError(
                    f"{name} need text, but this engine has no tokenizer (skip_tokenizer_init): use {instead}."
                )
        if params.allowed_token_ids is not None and not params.allowed_token_ids:
            raise InvalidParameterError("allowed_token_ids must not be empty: leave it None to allow every token.")
        self._check_ids("stop_token_ids", params.stop_token_ids, InvalidParameterError)
        self._check_ids("logit_bias", list(params.logit_bias or ()), InvalidParameterError)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or [], InvalidParameterError)
        for word in params.bad_words_token_ids:
            self._check_ids("bad_words_token_ids", word, InvalidParameterError)

    def _check_ids(self, what: str, token_ids: Sequence[int], error: type[InvalidRequestError]) -> None:
        """Refuse token ids that the model's vocabulary does not have."""
        size = self._limits.vocab_size
        if not token_ids or size is None:
            return
        for extreme in (min(token_ids), max(token_ids)):
            if not 0 <= extreme < size:
                raise error(f"{what} holds the token id {extreme}, but the model's vocabulary is 0 … {size - 1}.")


def _joined(content: Any) -> Any:
    """A message's content as text where it is a list of text parts: templates for text alone know no parts."""
    if not isinstance(content, list | tuple):
        return content
    for part in content:
        if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise InvalidRequestError(f'A part of a message must be {{"type": "text", "text": …}} here, got {part!r}.')
    return "\n".join(part["text"] for part in content)


def _token_ids(values: Any) -> list[int]:
    """A list of plain ints; numpy's and the like are taken too, floats, strings and booleans are not."""
    if isinstance(values, list) and all(type(value) is int for value in values):
        return values.copy()
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InvalidRequestError(f"prompt_token_ids must be a list of whole numbers, got {type(values).__name__}.")
    return [_whole("A token id", value) for value in values]


def _whole(what: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidRequestError(f"{what} must be a whole number, got {value!r}.") from None
    if not -(2**63) <= number < 2**63:
        raise InvalidRequestError(f"{what} must fit 64 bits, got {value!r}.")
    return number


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequestError(f"arrival_time must be a finite number of seconds, got {value!r}.")
    return float(value)
