"""Counters of one engine, under vLLM's names."""

from __future__ import annotations

from collections import Counter as Tally

import msgspec

from nbengine.outputs import RequestMetrics, RequestOutput
from nbengine.protocol import EngineCoreOutputs


class Metric(msgspec.Struct, tag=True, kw_only=True, frozen=True):
    name: str
    labels: dict[str, str] = {}


class Counter(Metric, kw_only=True, frozen=True):
    """Only ever grows, until the engine is gone."""

    value: int


class Gauge(Metric, kw_only=True, frozen=True):
    """As it is now."""

    value: float


class Summary(Metric, kw_only=True, frozen=True):
    """How many were measured, and their sum in seconds."""

    count: int
    sum: float


class EngineStats:
    """Fed with every step's outputs; `metrics` reads it. Each engine has its own."""

    def __init__(self) -> None:
        self._counts: Tally[str] = Tally()
        self._finished: Tally[str] = Tally()
        self._sums: dict[str, tuple[int, float]] = {}
        self._kv_cache_usage = 0.0

    def add_step(self, outputs: EngineCoreOutputs) -> None:
        self._counts["vllm:generation_tokens"] += sum(len(output.new_token_ids) for output in outputs.outputs)
        stats = outputs.stats
        if stats is None:
            return
        self._kv_cache_usage = stats.kv_cache_usage
        self._counts["vllm:num_preemptions"] += stats.num_preemptions
        self._counts["vllm:prefix_cache_queries"] += stats.prefix_cache.queries
        self._counts["vllm:prefix_cache_hits"] += stats.prefix_cache.hits

    def add_output(self, output: RequestOutput) -> None:
        """A request's last output."""
        for completion in output.outputs:
            if completion.finish_reason is not None:
                self._finished[completion.finish_reason] += 1
        self._counts["vllm:prompt_tokens"] += len(output.prompt_token_ids)
        if output.metrics is not None:
            self._add_times(output.metrics)

    def _add_times(self, times: RequestMetrics) -> None:
        measured = {
            "vllm:time_to_first_token_seconds": times.time_to_first_token,
            "vllm:inter_token_latency_seconds": times.inter_token_latency,
        }
        for name, seconds in measured.items():
            if seconds is not None:
                count, total = self._sums.get(name, (0, 0.0))
                self._sums[name] = (count + 1, total + seconds)

    def metrics(self, num_running: int, num_waiting: int) -> list[Metric]:
        gauges = {
            "vllm:num_requests_running": num_running,
            "vllm:num_requests_waiting": num_waiting,
            "vllm:kv_cache_usage_perc": self._kv_cache_usage,  # after the last step
        }
        counters = (
            "vllm:prompt_tokens",
            "vllm:generation_tokens",
            "vllm:num_preemptions",
            "vllm:prefix_cache_queries",
            "vllm:prefix_cache_hits",
        )
        return [
            *(Gauge(name=name, value=float(value)) for name, value in gauges.items()),
            *(Counter(name=name, value=self._counts[name]) for name in counters),
            *(
                Counter(name="vllm:request_success", labels={"finished_reason": reason}, value=count)
                for reason, count in sorted(self._finished.items())
            ),
            *(Summary(name=name, count=count, sum=total) for name, (count, total) in sorted(self._sums.items())),
        ]
