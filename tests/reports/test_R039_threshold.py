"""R039: long_prefill_token_threshold caps every chunk of every request, and a short prompt gets what is left of the step.
A threshold above the budget caps nothing, and a warning says so."""

from __future__ import annotations

import pytest

from nbengine.config import EngineArgs
from tests.scheduler.desk import Desk


def test_long_and_short_in_one_step() -> None:
    desk = Desk(max_num_batched_tokens=32, long_prefill_token_threshold=16)
    desk.add("L", 100, max_tokens=1)
    desk.add("S", 10, max_tokens=1)
    plans = [desk.step().num_scheduled_tokens for _ in range(7)]
    assert plans == [{"L": 16, "S": 10}, *([{"L": 16}] * 5), {"L": 4}]
    assert desk.reasons == {"S": "length", "L": "length"}


def test_nobody_is_lost_between_chunks() -> None:
    desk = Desk(max_num_batched_tokens=20, long_prefill_token_threshold=6, max_num_seqs=8)
    for number in range(8):
        desk.add(f"r{number}", 20 + number, max_tokens=2)
    desk.run()
    assert len(desk.reasons) == 8 and desk.num_free == 64


def test_a_threshold_that_caps_nothing() -> None:
    args = EngineArgs(max_num_batched_tokens=64, long_prefill_token_threshold=65)
    with pytest.warns(UserWarning, match="long_prefill_token_threshold=65 has no effect: a step has 64 tokens at most"):
        args.create_engine_config(256)
