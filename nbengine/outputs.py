"""What a user gets back: RequestOutput and its parts, vLLM's names."""

from __future__ import annotations

import html
from typing import Any

import msgspec


class Logprob(msgspec.Struct):
    """One token's log probability at one position. rank 1 is the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One of a request's n answers."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class RequestMetrics(msgspec.Struct, kw_only=True):
    """When things happened to a request, in seconds of the engine's clock: time.perf_counter(), or a simulation's own."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    num_generation_tokens: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token (TTFT)."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def inter_token_latency(self) -> float | None:
        """Mean seconds between tokens after the first (ITL)."""
        if self.first_token_time is None or self.last_token_time is None or self.num_generation_tokens < 2:
            return None
        return (self.last_token_time - self.first_token_time) / (self.num_generation_tokens - 1)


class RequestOutput(msgspec.Struct, kw_only=True):
    """A request's answer, so far or whole."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # None for the first token; in a stream of deltas once
    metrics: RequestMetrics | None = None

    def __str__(self) -> str:
        state = "finished" if self.finished else "running"
        lines = [f"request {self.request_id} ({state}), {len(self.prompt_token_ids)} prompt tokens"]
        for out in self.outputs:
            why = f" [{out.finish_reason}]" if out.finish_reason else ""
            lines.append(f"  {out.index}: {len(out.token_ids)} tokens{why} {out.text!r}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        rows = "".join(
            f"<tr><td>{out.index}</td><td style='text-align:left;white-space:pre-wrap'>{html.escape(out.text)}</td>"
            f"<td>{len(out.token_ids)}</td><td>{html.escape(str(out.finish_reason or '…'))}</td></tr>"
            for out in self.outputs
        )
        prompt = html.escape(self.prompt or f"{len(self.prompt_token_ids)} token ids")
        table = (
            f"<table><caption style='text-align:left'><b>{html.escape(self.request_id)}</b> {prompt}</caption>"
            f"<tr><th>#</th><th style='text-align:left'>text</th><th>tokens</th><th>finish</th></tr>{rows}</table>"
        )
        return {"text/plain": str(self), "text/html": table}
