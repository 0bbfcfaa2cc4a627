"""Arrivals from public formats, and their way through an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbengine import LLM
from nbengine.errors import ConfigError
from nbengine.executor.simulated import SimulatedExecutor
from nbengine.workload.replay import Arrival, read_arrivals, replay
from tests.scripted import scripted_llm


def file_of(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text.encode())
    return path


def test_azure(tmp_path: Path) -> None:
    rows = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,3,0", "2023-11-17 18:15:47.5+00:00,396,109"]
    text = "\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])  # without a last line end, as they are published
    first, last = read_arrivals(file_of(tmp_path, text))
    assert first == Arrival(0.0, 374, 44)
    assert (last.num_prompt_tokens, last.max_tokens) == (396, 109) and last.at == pytest.approx(86_400.81941)


def test_vidur(tmp_path: Path) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,4808,10\n1.5,3180,8\n"
    assert read_arrivals(file_of(tmp_path, text)) == [Arrival(0.0, 4808, 10), Arrival(1.25, 3180, 8)]


def test_a_foreign_file_is_refused_by_its_columns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"columns \['a', 'b'\]; wanted are"):
        read_arrivals(file_of(tmp_path, "a,b\n1,2\n"))


def test_the_order_is_that_of_arrival_and_other_requests_keep_their_outputs() -> None:
    llm = LLM("simulated", executor_cls=SimulatedExecutor)
    (other,) = llm.enqueue("hello")
    late, early = replay(llm, [Arrival(2.0, 5, 2), Arrival(1.0, 7, 3)])[::-1]
    assert (len(early.prompt_token_ids), len(late.prompt_token_ids)) == (7, 5)
    assert late.metrics.arrival_time - early.metrics.arrival_time == pytest.approx(1.0)
    assert [output.request_id for output in llm.wait_for_completion(use_tqdm=False)] == [other]


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="90"):
        replay(scripted_llm(), [Arrival(0.0, 90, 2)])
