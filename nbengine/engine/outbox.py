"""Outputs that were made and not yet handed out, one a request: so an interrupt, or someone else's step, loses none."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from nbengine.outputs import CompletionOutput, RequestOutput
from nbengine.sampling_params import RequestOutputKind


class Outbox:
    """Bounded by the number of requests: a newer output is joined to the one that still lies there."""

    def __init__(self) -> None:
        self._outputs: dict[str, tuple[int, RequestOutput]] = {}

    def put(self, output: RequestOutput, kind: RequestOutputKind, place: int) -> None:
        """place: outputs are handed out in this order."""
        _, older = self._outputs.get(output.request_id, (0, None))
        if older is not None and not older.finished and kind is RequestOutputKind.DELTA:
            output = _joined(older, output)
        self._outputs[output.request_id] = (place, output)

    def take(self, request_ids: Collection[str] | None = None) -> list[RequestOutput]:
        """Hand out what lies there: all, or that of these requests."""
        taken = {i: entry for i, entry in self._outputs.items() if request_ids is None or i in request_ids}
        outputs = [output for _, output in sorted(taken.values(), key=lambda entry: entry[0])]
        self._outputs = {i: entry for i, entry in self._outputs.items() if i not in taken}
        return outputs

    def copy(self) -> dict[str, tuple[int, RequestOutput]]:
        return dict(self._outputs)

    def restore(self, earlier: dict[str, tuple[int, RequestOutput]]) -> None:
        """Go back to a copy, less what has been taken since."""
        self._outputs = {i: entry for i, entry in earlier.items() if i in self._outputs}

    def __len__(self) -> int:
        return len(self._outputs)


def _joined(older: RequestOutput, newer: RequestOutput) -> RequestOutput:
    """Two deltas as one."""
    completions = {completion.index: completion for completion in older.outputs}
    for completion in newer.outputs:
        before = completions.get(completion.index)
        completions[completion.index] = completion if before is None else _joined_completion(before, completion)
    return structs.replace(
        newer,
        outputs=[completions[index] for index in sorted(completions)],
        prompt_logprobs=newer.prompt_logprobs if older.prompt_logprobs is None else older.prompt_logprobs,
    )


def _joined_completion(older: CompletionOutput, newer: CompletionOutput) -> CompletionOutput:
    logprobs = newer.logprobs if newer.logprobs is None else [*(older.logprobs or ()), *newer.logprobs]
    token_ids = older.token_ids + newer.token_ids
    return structs.replace(newer, text=older.text + newer.text, token_ids=token_ids, logprobs=logprobs)
