"""A run in numbers: by the time that the engine worked, however long a person looked at it."""

from __future__ import annotations

import time

import pytest

from nbengine.debug.totals import totals
from tests.debug.crowd import crowded
from tests.observe.engines import make_llm


def test_time_while_it_stands_counts_for_nothing() -> None:
    dbg = make_llm().debug()
    dbg.add("hello", max_tokens=3, temperature=0, ignore_eos=True)
    for _ in range(3):
        time.sleep(0.2)
        dbg.step()
    made = totals(dbg.trace)
    request = dbg.view.requests["r1"]
    assert (request.time_to_first_token, request.inter_token_latency) == pytest.approx((made.mean_ttft_s, made.mean_itl_s))
    took = [step.scheduled.schedule_s + step.executed.execute_s + step.updated.update_s for step in dbg.records]
    assert made.mean_ttft_s == pytest.approx(took[0]) and made.mean_ttft_s < 0.1
    assert made.mean_itl_s == pytest.approx(sum(took[1:]) / 2)
    assert made.seconds == pytest.approx(sum(took)) and made.tokens_per_s == pytest.approx(3 / sum(took))


def test_a_run_that_was_rewound_has_the_totals_of_one_that_was_not() -> None:
    plain, rewound = crowded(), crowded()
    plain.run()
    rewound.run(until=12)
    rewound.back(7)
    rewound.run()
    assert totals(plain.trace) == totals(rewound.trace) and totals(plain.trace).preemptions > 0


def test_a_fork_counts_from_where_it_began_and_so_does_the_other() -> None:
    dbg = crowded()
    dbg.run(until=5)
    fork = dbg.fork()
    for engine in (dbg, fork):
        engine.add("late", max_tokens=4)
        engine.run()
    comparison = dbg.compare(fork)
    assert comparison.first_step == 5 and comparison.first_difference is None
    here, there = comparison.here, comparison.there
    assert here.mean_ttft_s == pytest.approx(there.mean_ttft_s) and here.mean_itl_s == pytest.approx(there.mean_itl_s)
    # the first tokens of the four came before: only the late one's counts
    arrived = dbg.view.requests["r5"]
    assert here.mean_ttft_s == pytest.approx(arrived.first_token_at - arrived.added_at)


def test_nothing_measured() -> None:
    made = totals(make_llm().debug().trace)
    assert (made.steps, made.mean_ttft_s, made.mean_itl_s, made.tokens_per_s) == (0, None, None, None)
