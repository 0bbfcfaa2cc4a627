"""What the front knows of one live request: its text so far, and what of it has been handed out."""

from __future__ import annotations

from collections.abc import Callable

from nbengine.engine.detokenizer import Detokenizer, Tokenizer
from nbengine.engine.logprobs import LogprobsCollector
from nbengine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from nbengine.protocol import EngineCoreOutput, EngineCoreRequest, FinishReason
from nbengine.sampling_params import RequestOutputKind, SamplingParams


class Answer:
    """One of a request's n answers. Everything but the token ids can be made again from them, which rewinding uses."""

    def __init__(self, index: int, make_detokenizer: Callable[[], Detokenizer], logprobs: LogprobsCollector | None) -> None:
        self.index = index
        self._make_detokenizer = make_detokenizer
        self.detokenizer = make_detokenizer()
        self.logprobs = logprobs
        self.token_ids: list[int] = []
        self.token_times: list[float] = []  # seconds of the engine's clock, one a token
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._sent_tokens = 0
        self._sent_chars = 0
        self._sent_end = False

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def take(self, output: EngineCoreOutput, now: float) -> bool:
        """Add what a step made. Returns True if a stop string ended the answer, which the core cannot know."""
        stopped_by_token = output.finish_reason is FinishReason.STOP
        for position, token_id in enumerate(output.new_token_ids):
            self.token_ids.append(token_id)
            self.token_times.append(now)
            if self.logprobs is not None and output.new_logprobs:
                self.logprobs.append(output.new_logprobs[position])
            if stopped_by_token and position == len(output.new_token_ids) - 1:
                self.detokenizer.push_stop_token(token_id)
            elif stop := self.detokenizer.push(token_id):
                self.finish(FinishReason.STOP, stop)
                return True
        if output.finish_reason is not None:
            self.finish(output.finish_reason, output.error or output.stop_reason)
        return False

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        self.detokenizer.flush()
        self.finish_reason, self.stop_reason = reason, stop_reason

    def rewind(self, num_tokens: int) -> None:
        """Go back to the first `num_tokens` generated tokens, not finished."""
        del self.token_ids[num_tokens:], self.token_times[num_tokens:]
        if self.logprobs is not None:
            self.logprobs.truncate(num_tokens)
        self.finish_reason = self.stop_reason = None
        self.detokenizer = self._make_detokenizer()
        for token_id in self.token_ids:
            self.detokenizer.push(token_id)
        self._sent_tokens = min(self._sent_tokens, num_tokens)
        self._sent_chars = min(self._sent_chars, self.detokenizer.shown(finished=False))
        self._sent_end = False

    def completion(self) -> CompletionOutput:
        """All of it so far."""
        return self._output(0, 0)

    def delta(self) -> CompletionOutput | None:
        """What is new since the last delta; None if nothing is."""
        shown = max(self.detokenizer.shown(self.finished), self._sent_chars)
        state = (len(self.token_ids), shown, self.finished)
        if state == (self._sent_tokens, self._sent_chars, self._sent_end):
            return None
        output = self._output(self._sent_tokens, self._sent_chars)
        self._sent_tokens, self._sent_chars, self._sent_end = state
        return output

    def _output(self, first_token: int, first_char: int) -> CompletionOutput:
        logprobs = self.logprobs
        return CompletionOutput(
            index=self.index,
            text=self.detokenizer.text[first_char : self.detokenizer.shown(self.finished)],
            token_ids=self.token_ids[first_token:],
            cumulative_logprob=None if logprobs is None else logprobs.cumulative(self.token_ids),
            logprobs=None if logprobs is None else logprobs.positions[first_token:],
            finish_reason=self.finish_reason.value if self.finish_reason is not None else None,
            stop_reason=self.stop_reason,
        )


class RequestState:
    """One request of the user's with its n answers. `core_ids[i]` is what the core calls answer i.

    place: its number in the order of adding.
    """

    def __init__(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        core_ids: list[str],
        tokenizer: Tokenizer | None,
        *,
        place: int,
    ) -> None:
        params = request.sampling_params
        self.request_id = request.request_id
        self.prompt = prompt
        self.prompt_token_ids = request.prompt_token_ids
        self.core_ids = core_ids
        self.place = place
        self.output_kind = params.output_kind
        self.arrival_time = request.arrival_time
        self.num_cached_tokens: int | None = None
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._prompt_logprobs_due = False  # not in any delta yet
        self._prompt_collector = _prompt_collector(tokenizer, params)
        self.answers = [_new_answer(i, tokenizer, self.prompt_token_ids, params) for i in range(len(core_ids))]

    @property
    def finished(self) -> bool:
        return all(answer.finished for answer in self.answers)

    def take(self, index: int, output: EngineCoreOutput, now: float) -> bool:
        """Add what a step made for answer `index`. Returns True if a stop string ended it."""
        if self.num_cached_tokens is None:
            self.num_cached_tokens = output.num_cached_tokens
        answer = self.answers[index]
        if self._prompt_collector is not None and index == 0 and not answer.token_ids:
            positions = self._prompt_collector.convert(output.prompt_logprobs or [])
            self.prompt_logprobs, self._prompt_logprobs_due = [None, *positions], True
        return answer.take(output, now)

    def whole(self) -> RequestOutput:
        """Everything so far, whatever output_kind says."""
        return self._output([answer.completion() for answer in self.answers])

    def next_output(self) -> RequestOutput | None:
        """What output_kind wants to be handed out now."""
        match self.output_kind:
            case RequestOutputKind.FINAL_ONLY:
                return self.whole() if self.finished else None
            case RequestOutputKind.CUMULATIVE:
                return self.whole()
            case RequestOutputKind.DELTA:
                deltas = [delta for answer in self.answers if (delta := answer.delta()) is not None]
                due, self._prompt_logprobs_due = self._prompt_logprobs_due, False
                return self._output(deltas, with_prompt=due) if deltas else None

    def _output(self, completions: list[CompletionOutput], *, with_prompt: bool = True) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=completions,
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=self.prompt_logprobs if with_prompt else None,
            metrics=self._metrics(),
        )

    def _metrics(self) -> RequestMetrics:
        started = [answer.token_times for answer in self.answers if answer.token_times]
        return RequestMetrics(
            arrival_time=self.arrival_time,
            first_token_time=min((times[0] for times in started), default=None),
            last_token_time=max((times[-1] for times in started), default=None),
            num_generation_tokens=sum(len(times) for times in started),
        )


def _prompt_collector(tokenizer: Tokenizer | None, params: SamplingParams) -> LogprobsCollector | None:
    return None if params.prompt_logprobs is None else LogprobsCollector(tokenizer, params.prompt_logprobs)


def _new_answer(index: int, tokenizer: Tokenizer | None, prompt_token_ids: list[int], params: SamplingParams) -> Answer:
    logprobs = None if params.logprobs is None else LogprobsCollector(tokenizer, params.logprobs)
    return Answer(index, lambda: Detokenizer(tokenizer, prompt_token_ids, params), logprobs)
