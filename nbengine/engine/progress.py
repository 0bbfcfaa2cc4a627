"""The progress bar of a generate call: one bar, and it ends at exactly its total, whatever happens."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from nbengine.outputs import RequestOutput


class Progress:
    """Counts prompts, however many answers each has. After an error or an interrupt the bar closes with what was done as
    its total, and says how many were left."""

    def __init__(self, total: int, use_tqdm: bool | Callable[..., Any]) -> None:
        self._total = total
        self._bar: Any = None
        self._prompt_tokens = self._output_tokens = 0
        self._start = time.monotonic()
        if use_tqdm and total:
            make = use_tqdm if callable(use_tqdm) else _tqdm()
            self._bar = make(total=total, desc="Processed prompts", dynamic_ncols=True)

    def advance(self, num_prompts: int) -> None:
        if self._bar is not None and num_prompts:
            self._bar.update(num_prompts)

    def count_tokens(self, outputs: Iterable[RequestOutput]) -> None:
        """Show the rates, in tokens a second, over the outputs that have finished."""
        finished = [output for output in outputs if output.finished]
        if self._bar is None or not finished:
            return
        self._prompt_tokens += sum(len(output.prompt_token_ids) for output in finished)
        self._output_tokens += sum(len(answer.token_ids) for output in finished for answer in output.outputs)
        seconds = max(time.monotonic() - self._start, 1e-6)
        rates = f"{self._prompt_tokens / seconds:,.1f} tok/s in, {self._output_tokens / seconds:,.1f} tok/s out"
        self._bar.set_postfix_str(rates, refresh=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is None:
            return
        left = self._total - self._bar.n
        if left:
            self._bar.total = self._bar.n
            self._bar.set_postfix_str(f"{left} of {self._total} left")
        self._bar.close()


def _tqdm() -> Any:
    """tqdm for where we are; without ipywidgets it is the plain one, and that needs no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm
