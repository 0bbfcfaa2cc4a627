"""Breakpoints stop where they say, and say which one and why."""

from __future__ import annotations

from typing import Any

import pytest

from nbengine.observe.breakpoints import Breakpoints, Hit
from nbengine.observe.recorder import Recorder
from tests.observe.engines import make_core, request


class Watch:
    """A small engine in which r0 … r3 share a prefix, and a pool too small for them."""

    def __init__(self, **options: Any) -> None:
        self.core = make_core(num_blocks=12, max_model_len=40, **options)
        self.recorder = Recorder(self.core)
        self.points = Breakpoints()
        self.hits: list[Hit] = []
        self.recorder.after = lambda record: self.hits.extend(self.points.check(record, self.recorder.view))
        self.recorder.attach()

    def run(self, steps: int = 60) -> list[Hit]:
        for i in range(4):
            self.core.add_request(request(f"r{i}", [1, 2, 3, 4, 5, 6, 7, 8, 50 + i], 16))
        while self.core.has_unfinished_requests() and self.core.step_count < steps:
            self.core.step()
        return self.hits


@pytest.mark.parametrize("event", ["preempted", "finished", "prefix_hit", "prefix_miss", "evicted", "admitted", "resumed"])
def test_every_event_stops(event: str) -> None:
    watch = Watch()
    watch.points.add(event=event)
    hits = watch.run()
    assert hits and all(hit.number == 1 for hit in hits)
    assert event.replace("_", " ") in hits[0].why


def test_chunked_stops() -> None:
    watch = Watch(max_num_batched_tokens=6)
    watch.points.add(event="chunked")
    assert "r0 chunked" in watch.run()[0].why


def test_a_slow_step() -> None:
    watch = Watch()
    watch.points.add(event="step_slower_than", seconds=0.0)
    watch.points.add(event="step_slower_than", seconds=100.0)
    assert {hit.number for hit in watch.run(3)} == {1}
    assert "more than 0 ms" in watch.hits[0].why


def test_request_step_and_phase() -> None:
    watch = Watch()
    watch.points.add(event="finished", request_id="r2")
    watch.points.add(step=4)
    watch.points.add(step=5, phase="update")
    watch.points.add(phase="execute", once=True)
    hits = watch.run()
    assert [(h.step, h.phase) for h in hits if h.number == 2] == [(4, "schedule")]
    assert [(h.step, h.phase) for h in hits if h.number == 3] == [(5, "update")]
    assert [(h.step, h.phase) for h in hits if h.number == 4] == [(0, "execute")]
    assert len([h for h in hits if h.number == 1]) == 1 and "r2 finished" in next(h.why for h in hits if h.number == 1)


def test_a_block_that_changes_hands() -> None:
    watch = Watch()
    watch.points.add(block_id=1)
    hits = watch.run(1)
    assert "block 1: allocate r0, hit r1, hit r2, hit r3" in hits[0].why


def test_a_predicate_stops_each_time_that_it_becomes_true() -> None:
    watch = Watch()
    watch.points.add(when=lambda view: view.free_blocks < 3)
    hits = watch.run()
    assert hits[0].why == "lambda view: view.free_blocks < 3"
    states = [step.scheduled.free_blocks for step in watch.recorder.steps if step.scheduled]
    assert 1 <= len(hits) < sum(free is not None and free < 3 for free in states)


def test_count_condition_and_switching_off() -> None:
    watch = Watch()
    watch.points.add(event="finished", count=3)
    watch.points.add(event="finished", condition=lambda view: "r0" in view.finished)
    off = watch.points.add(event="finished")
    watch.points.disable(off.number)
    hits = watch.run()
    assert not [hit for hit in hits if hit.number == 3] and off.hits == 0
    ends = [step.step for step in watch.recorder.steps if step.updated and step.updated.finished]
    assert watch.points[1].hits == len(ends) - 2 > 0
    assert watch.points[2].hits > 0


def test_a_predicate_that_raises_stops_once_says_so_and_is_switched_off() -> None:
    watch = Watch()
    watch.points.add(when=lambda view: view.no_such_thing)
    hits = watch.run()
    assert len(hits) == 1 and "AttributeError" in hits[0].why
    assert watch.points[1].error and not watch.points[1].enabled
    assert "AttributeError" in repr(watch.points)


@pytest.mark.parametrize(
    ("criteria", "words"),
    [
        ({}, "needs an event"),
        ({"event": "exploded"}, "no event 'exploded'"),
        ({"event": "step_slower_than"}, "seconds"),
        ({"phase": "dance"}, "phase must be"),
        ({"event": "finished", "count": 0}, "count must be"),
    ],
)
def test_what_makes_no_sense_is_refused(criteria: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Breakpoints().add(**criteria)


def test_the_list() -> None:
    points = Breakpoints()
    points.add(event="preempted", request_id="r3", once=True)
    points.add(step=41)
    assert len(points) == 2 and [p.number for p in points] == [1, 2]
    assert points[1].describe() == "preempted, request r3, once"
    points.remove(1)
    with pytest.raises(KeyError, match="no breakpoint 1; there are: 2"):
        points.remove(1)
    assert points.add(step=1).number == 3
    assert "step 41" in points._repr_mimebundle_()["text/html"]
