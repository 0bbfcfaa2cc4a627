"""The core's tokens become the user's outputs: text, stop strings, log probabilities, n answers gathered."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nbengine.engine.detokenizer import Tokenizer
from nbengine.engine.outbox import Outbox
from nbengine.engine.request_state import RequestState
from nbengine.errors import DuplicateRequestError
from nbengine.outputs import RequestOutput
from nbengine.protocol import EngineCoreOutputs, EngineCoreRequest, FinishReason


class Mark(msgspec.Struct, frozen=True):
    """Which requests live, and how many tokens each unfinished answer has: a place to come back to.

    Taking one costs O(live requests). It holds until a mark older than it is restored.
    """

    states: list[tuple[RequestState, dict[int, int]]]
    not_taken: dict[str, tuple[int, RequestOutput]]


class OutputProcessor:
    """Holds the live requests by the user's id, and each of their answers by the core's id."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.requests: dict[str, RequestState] = {}
        self._by_core_id: dict[str, tuple[RequestState, int]] = {}
        self.outbox = Outbox()
        self._num_added = 0

    # -------------------------------------------------------------------------------------------------- in and out

    def check_new(self, core_ids: list[str], request_id: str) -> None:
        """Raises DuplicateRequestError if a live request has one of these ids."""
        for name in (request_id, *core_ids):
            if name in self.requests or name in self._by_core_id:
                raise DuplicateRequestError(
                    f"A live request has the id {name!r} already: choose another, or abort that one first."
                )

    def add(self, request: EngineCoreRequest, prompt: str | None, core_ids: list[str]) -> None:
        """Expect outputs for this request, which the core knows as `core_ids`, one an answer."""
        self.check_new(core_ids, request.request_id)
        self._enter(RequestState(request, prompt, core_ids, self._tokenizer, place=self._num_added))
        self._num_added += 1

    def process(self, outputs: EngineCoreOutputs) -> tuple[list[RequestOutput], list[str]]:
        """Take a step's tokens. Outputs for ids that are gone are skipped.

        Returns what is to be handed out (it goes to the outbox too), and the core's ids of answers that a stop string
        ended and that the core still runs: abort them there.
        """
        touched: dict[str, RequestState] = {}
        to_abort = []
        for output in outputs.outputs:
            entry = self._by_core_id.get(output.request_id)
            if entry is None:
                continue
            state, index = entry
            stopped = state.take(index, output, outputs.timestamp)
            if stopped and output.finish_reason is None:
                to_abort.append(output.request_id)
            touched[state.request_id] = state
        return self._hand_out(touched.values()), to_abort

    def abort(
        self, request_ids: list[str], reason: FinishReason = FinishReason.ABORT
    ) -> tuple[list[str], list[RequestOutput]]:
        """End requests (the user's ids) or single answers (the core's ids); those not alive are ignored.

        Returns the core's ids to abort there, and the last outputs, with what there was (they go to the outbox too).
        """
        to_abort: dict[str, None] = {}
        touched: dict[str, RequestState] = {}
        for request_id in request_ids:
            state = self.requests.get(request_id)
            core_ids = state.core_ids if state is not None else [request_id]
            for core_id in core_ids:
                if (entry := self._by_core_id.get(core_id)) and not entry[0].answers[entry[1]].finished:
                    entry[0].answers[entry[1]].finish(reason)
                    to_abort[core_id] = None
                    touched[entry[0].request_id] = entry[0]
        return list(to_abort), self._hand_out(touched.values())

    def forget(self, request_ids: list[str]) -> list[str]:
        """Drop requests without a last output. Returns the core's ids to abort there."""
        states = [self.requests[i] for i in request_ids if i in self.requests]
        for state in states:
            self._leave(state)
        return [core_id for state in states for core_id in state.core_ids]

    def partial_outputs(self) -> list[RequestOutput]:
        """What the live requests have so far, whole. Takes nothing away from later outputs."""
        return [state.whole() for state in self.requests.values()]

    # ---------------------------------------------------------------------------------------------------- rewinding

    def mark(self) -> Mark:
        states = [
            (state, {answer.index: len(answer.token_ids) for answer in state.answers if not answer.finished})
            for state in self.requests.values()
        ]
        return Mark(states, self.outbox.copy())

    def restore(self, mark: Mark) -> None:
        """Go back to a mark: later requests vanish, ended ones live again, outputs made since are dropped. What has been
        taken from the outbox stays taken."""
        self.outbox.restore(mark.not_taken)
        self.requests.clear()
        self._by_core_id.clear()
        for state, kept in mark.states:
            for index, num_tokens in kept.items():
                state.answers[index].rewind(num_tokens)
            self._enter(state)

    def rewind(self, num_output_tokens: dict[str, int]) -> None:
        """Cut live answers (by the core's ids) back to so many generated tokens."""
        for core_id, num_tokens in num_output_tokens.items():
            state, index = self._by_core_id[core_id]
            state.answers[index].rewind(num_tokens)

    # ------------------------------------------------------------------------------------------------------- within

    def _hand_out(self, states: Iterable[RequestState]) -> list[RequestOutput]:
        made = []
        for state in states:
            if (output := state.next_output()) is not None:
                self.outbox.put(output, state.output_kind, state.place)
                made.append(output)
            if state.finished:
                self._leave(state)
        return made

    def _enter(self, state: RequestState) -> None:
        self.requests[state.request_id] = state
        for index, core_id in enumerate(state.core_ids):
            self._by_core_id[core_id] = (state, index)

    def _leave(self, state: RequestState) -> None:
        del self.requests[state.request_id]
        for core_id in state.core_ids:
            del self._by_core_id[core_id]
