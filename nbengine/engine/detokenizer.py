"""Token ids to text, a token at a time: never half a character, and stop strings wherever the token borders lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream

from nbengine.sampling_params import SamplingParams

BROKEN = "�"  # what a decoder puts for bytes that are no character, or not yet
CONTEXT_TOKENS = 6  # of the prompt, so that the first token is spaced as its place in the text asks
MAX_CONTEXT_TOKENS = 24  # at most, where the prompt's tail starts or ends within a character


@runtime_checkable
class Tokenizer(Protocol):
    """What the front needs of a tokenizer; those of transformers have it. Fast ones also have `backend_tokenizer`."""

    eos_token_id: int | None

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any: ...


class _Stream:
    """Text of a growing list of tokens, given out in pieces that end on a character's border.

    With a fast tokenizer the pieces come from the tokenizers library's DecodeStream, which looks at a few tokens only. Any
    other tokenizer is asked for the text of the last piece's tokens with and without what is new.
    """

    def __init__(self, tokenizer: Tokenizer, context: list[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._shown = list(context)  # tokens of the last piece
        self._held: list[int] = []  # tokens since
        self._fast: FastTokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        self._stream = self._new_stream(self._shown)

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that is now certain, often "" within a character."""
        self._held.append(token_id)
        if self._fast is None or self._stream is None:
            piece = self._difference()
            piece = "" if piece.endswith(BROKEN) else piece
        else:
            piece = self._step_stream(self._stream, token_id)
        if piece:
            self._shown, self._held = self._held, []
        return piece

    def flush(self) -> str:
        """The text of the tokens still held: a cut character shows as one replacement character."""
        piece = self._difference() if self._held else ""
        self._shown, self._held = self._held, []
        return piece

    def _new_stream(self, context: list[int]) -> DecodeStream | None:
        return DecodeStream(ids=list(context), skip_special_tokens=self._skip) if self._fast is not None else None

    def _step_stream(self, stream: DecodeStream, token_id: int) -> str:
        assert self._fast is not None
        try:
            return stream.step(self._fast, token_id) or ""
        except Exception as error:  # the library raises plain Exception
            if "prefix" not in str(error).lower():
                raise
            # A decoder that rewrites earlier text when a token is added: take the difference, begin a new stream behind it.
            self._stream = self._new_stream(self._held)
            return self._difference()

    def _difference(self) -> str:
        """The text that the held tokens add to the shown ones."""
        before = decode(self._tokenizer, self._shown, self._skip)
        after = decode(self._tokenizer, self._shown + self._held, self._skip)
        return after[len(before) :] if after.startswith(before) else decode(self._tokenizer, self._held, self._skip)


class Detokenizer:
    """A request's output text. `text` is all of it so far, `shown` how much of it may be shown.

    Text that may yet turn out to be the beginning of a stop string is held back. Where several stop strings could end the
    text, the one that is complete first wins, so that the answer does not depend on how the text is cut into tokens.
    """

    def __init__(self, tokenizer: Tokenizer | None, prompt_token_ids: list[int], params: SamplingParams) -> None:
        self._params = params
        self._stream: _Stream | None = None
        if tokenizer is not None and params.detokenize:
            context = prompt_context(tokenizer, prompt_token_ids)
            self._stream = _Stream(tokenizer, context, params.skip_special_tokens)
        self._num_tokens = 0
        self._searched = 0  # characters in which no stop string ends
        self.text = ""
        self.stopped_by: str | None = None

    def push(self, token_id: int) -> str | None:
        """Add a token. Returns the stop string that it completes, if any; then `text` is cut there."""
        self._num_tokens += 1
        if self._stream is None:
            return None
        self.text += self._stream.push(token_id)
        return self._find_stop()

    def push_stop_token(self, token_id: int) -> None:
        """Add a token that ended the request: shown only with include_stop_str_in_output."""
        if self._params.include_stop_str_in_output:
            self.push(token_id)
        else:
            self._num_tokens += 1

    def flush(self) -> None:
        """No more tokens come: add what was held within a character."""
        if self._stream is not None and self.stopped_by is None:
            self.text += self._stream.flush()

    def shown(self, finished: bool) -> int:
        """How many characters of `text` may be shown."""
        if finished or not self._params.stop or self._params.include_stop_str_in_output:
            return len(self.text)
        return len(self.text) - max(_overlap(self.text, stop) for stop in self._params.stop)

    def _find_stop(self) -> str | None:
        stops = self._params.stop
        found = first_stop(self.text, stops, self._searched) if self._num_tokens >= self._params.min_tokens else None
        if found is None:
            self._searched = len(self.text)
            return None
        start, end, self.stopped_by = found
        self.text = self.text[: end if self._params.include_stop_str_in_output else start]
        return self.stopped_by


def decode(tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool = False) -> str:
    """The text of these tokens as the tokenizer's decoder has it, with no cleaning-up of spaces."""
    fast: FastTokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
    return (fast or tokenizer).decode(token_ids, skip_special_tokens=skip_special_tokens)


def prompt_context(tokenizer: Tokenizer, prompt_token_ids: list[int]) -> list[int]:
    """The tail of the prompt, whole characters only: decoders space a token by what stands before it."""
    for count in range(CONTEXT_TOKENS, MAX_CONTEXT_TOKENS + 1):
        tail = prompt_token_ids[-count:]
        if BROKEN not in decode(tokenizer, tail):
            return tail
        if count >= len(prompt_token_ids):
            break
    return []


def first_stop(text: str, stops: list[str], searched: int) -> tuple[int, int, str] | None:
    """The stop string that ends first behind character `searched` of `text`: (start, end, stop); the longest of equals."""
    found: tuple[int, int, str] | None = None
    for stop in stops:
        start = text.find(stop, max(0, searched - len(stop) + 1))
        if start >= 0 and (found is None or (start + len(stop), start) < (found[1], found[0])):
            found = (start, start + len(stop), stop)
    return found


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with, `stop` itself left out."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
