"""The record streams that both folds, Python's and the browser's, are held to. `python -m tests.observe.test_fixtures`
writes them anew: only after the schema, or what a run of the engine looks like, changed on purpose."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from nbengine.observe.recorder import Recorder
from nbengine.observe.records import AnyRecord, Header, Keyframe, decoder
from nbengine.observe.undo import UndoLog
from nbengine.observe.view import EngineView
from tests.observe.engines import Mess, make_core, request

FOLDER = Path(__file__).parents[1] / "fixtures"
LIMIT = 200_000  # bytes, all of them together


class Stream:
    """Everything that a listener hears, and the view after some of it ("after": the number of the last record folded)."""

    def __init__(self, every: int = 7, **options: Any) -> None:
        self.core = make_core(**options)
        self.recorder = Recorder(self.core, tensors=False)
        self.undo = UndoLog(self.core)
        self.records: list[bytes] = []
        self.view: EngineView | None = None
        self.views: list[dict[str, Any]] = []
        self.every = every
        self.recorder.subscribe(self.hear)
        self.recorder.attach()

    def hear(self, record: AnyRecord, data: bytes) -> None:
        self.records.append(data)
        if isinstance(record, Header):
            self.view = EngineView(record)
        else:
            assert self.view is not None
            self.view.apply(decoder.decode(data))
        if len(self.records) % self.every == 0 or isinstance(record, Keyframe):
            self.views.append({"after": len(self.records) - 1, "view": self.view.canonical()})

    def step(self) -> None:
        self.undo.before_schedule()
        self.core.step()

    def as_json(self) -> dict[str, Any]:
        return {"records": [base64.b64encode(data).decode() for data in self.records], "views": self.views}


def a_mess(seed: int, policy: str, *, steps: int, every: int) -> Stream:
    """Adds, aborts, preemptions, prefix hits, resets of the prefix cache; the longer one goes over a keyframe."""
    stream = Stream(every, num_blocks=18, scheduling_policy=policy, max_num_batched_tokens=20)
    mess = Mess(stream.core, seed)
    for _ in range(steps):
        mess.inputs()
        stream.step()
    return stream


def a_reset() -> Stream:
    """The engine is reset in the middle of a step and goes on."""
    stream = Stream()
    for name in "ab":
        stream.core.add_request(request(name, list(range(10)), 6))
    stream.step()
    stream.core.schedule()
    stream.core.reset()
    stream.core.add_request(request("a", [1, 2, 3], 3))
    for _ in range(4):
        stream.step()
    return stream


def a_rewind() -> Stream:
    """Six steps, four of them undone, and another road from there."""
    stream = Stream(every=3)
    for name in "abc":
        stream.core.add_request(request(name, list(range(8)), 5))
    for _ in range(6):
        stream.step()
    stream.undo.restore(2)
    stream.recorder.rewound(2)
    stream.core.abort_requests(["b"])
    for _ in range(5):
        stream.step()
    return stream


def by_hand() -> Stream:
    """Changes by hand: a priority, a preemption, an option, an edited token."""
    stream = Stream(every=2, num_blocks=12, max_model_len=40)
    core, recorder = stream.core, stream.recorder
    for name in "abc":
        core.add_request(request(name, list(range(9)), 8))
    stream.step()
    core.scheduler.set_priority(core.scheduler.requests["c"], -1)
    recorder.on_changed("priority", {"priority": -1}, "c")
    core.scheduler.preempt(core.scheduler.requests["b"])
    recorder.on_changed("preempt", {"preempted": ["b"]}, "b")
    recorder.on_changed("option", {"max_num_seqs": 2})
    core.schedule()
    core.execute()
    assert core.result is not None
    core.result.sampled_token_ids[0][-1] = 77
    recorder.on_changed("edit_token", {"token_id": 77, "before": 1}, core.result.request_ids[0])
    core.update()
    recorder.on_changed("pause", {"reason": "to look"})
    while core.has_unfinished_requests():
        stream.step()
    return stream


STREAMS = {
    "mess-fcfs": lambda: a_mess(5, "fcfs", steps=66, every=50),
    "mess-priority": lambda: a_mess(6, "priority", steps=26, every=20),
    "reset": a_reset,
    "rewind": a_rewind,
    "by-hand": by_hand,
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_fold_gives_what_the_fixture_says(name: str) -> None:
    fixture = json.loads((FOLDER / f"{name}.json").read_text())
    records = [decoder.decode(base64.b64decode(data)) for data in fixture["records"]]
    assert isinstance(records[0], Header)
    view = EngineView(records[0])
    wanted = {entry["after"]: entry["view"] for entry in fixture["views"]}
    assert len(wanted) > 3
    for number, record in enumerate(records[1:], start=1):
        view.apply(record)
        if number in wanted:
            assert view.canonical() == wanted[number], f"after record {number}"


@pytest.mark.parametrize("name", STREAMS)
def test_the_fixture_is_what_the_engine_does_today(name: str) -> None:
    fixture = json.loads((FOLDER / f"{name}.json").read_text())
    assert STREAMS[name]().views == fixture["views"]


def test_they_are_small_and_cover_every_kind_of_record() -> None:
    files = [FOLDER / f"{name}.json" for name in STREAMS]
    assert sum(file.stat().st_size for file in files) < LIMIT
    kinds = {
        type(decoder.decode(base64.b64decode(data))).__name__
        for file in files
        for data in json.loads(file.read_text())["records"]
    }
    assert kinds == {"Header", "Added", "Aborted", "Changed", "Scheduled", "Executed", "Updated", "Keyframe"}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in STREAMS.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(make().as_json(), separators=(",", ":")) + "\n")
