"""R109: the real scheduler without GPU or weights, on a virtual clock: TTFT, TPOT and E2E of a public trace in seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nbengine import LLM
from nbengine.executor.simulated import Share, SimulatedExecutor
from nbengine.outputs import RequestMetrics
from nbengine.workload.replay import Arrival, read_arrivals, replay

ROWS = read_arrivals(Path(__file__).with_name("data") / "azure_conv_100.csv")


class TenAndTwo(SimulatedExecutor):
    """10 ms for a step with a prefill chunk, 2 ms for one of decode alone."""

    def step_seconds(self, batch: Sequence[Share]) -> float:
        return 0.010 if any(share.is_prefill for share in batch) else 0.002


def run(arrivals: list[Arrival]) -> list[tuple[float, float | None, float | None]]:
    """(TTFT, ITL, E2E) of each, in virtual seconds."""
    outputs = replay(LLM("simulated", executor_cls=TenAndTwo), arrivals)
    assert [len(out.outputs[0].token_ids) for out in outputs] == [arrival.max_tokens for arrival in arrivals]
    return [figures(out.metrics) for out in outputs]


def figures(times: RequestMetrics | None) -> tuple[float, float | None, float | None]:
    assert times is not None and times.time_to_first_token is not None and times.last_token_time is not None
    return times.time_to_first_token, times.inter_token_latency, times.last_token_time - times.arrival_time


def test_alone_it_is_a_sum_by_hand() -> None:
    ((ttft, itl, whole),) = run([Arrival(3.0, num_prompt_tokens=5000, max_tokens=11)])
    assert ttft == pytest.approx(3 * 0.010)  # 5,000 tokens are three chunks of at most 2,048
    assert itl == pytest.approx(0.002) and whole == pytest.approx(0.030 + 10 * 0.002)


def test_one_who_arrives_during_a_step_waits_for_its_end() -> None:
    first, late = run([Arrival(0.0, 100, 5), Arrival(0.013, 100, 2)])
    # steps end at 10, 12, 14 | prefill of the second until 24 | 26
    assert first[2] == pytest.approx(0.026) and late[0] == pytest.approx(0.011)


def test_a_public_trace_is_over_in_seconds_and_twice_the_same() -> None:
    assert len(ROWS) == 100
    began = time.perf_counter()
    one, other = run(ROWS), run(ROWS)
    assert time.perf_counter() - began < 30
    assert one == other
    assert max(whole for _, _, whole in one) < 10 < ROWS[-1].at  # most of the time nobody was there
    assert all(0 < ttft <= whole for ttft, _, whole in one)
    assert all(itl is None or 0.0019 < itl < 0.0101 for _, itl, _ in one)
