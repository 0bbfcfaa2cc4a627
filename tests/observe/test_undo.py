"""Going back is exact: queues, blocks, hashes, free-queue order, KV content; and the same commands give the same records."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from nbengine.debug.compare import comparable
from nbengine.observe.reading import keyframe_of
from nbengine.observe.recorder import Recorder
from nbengine.observe.records import AnyRecord, Scheduled
from nbengine.observe.undo import UndoLog
from nbengine.observe.view import EngineView
from nbengine.scheduler.invariants import check_invariants
from tests.observe.engines import Mess, PlainExecutor, make_core, request


class Machine:
    """A core with a recorder and an undo log, and a mess that can be put back too."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.core = make_core(num_blocks=18, **options)
        self.recorder = Recorder(self.core)
        self.undo = UndoLog(self.core)
        self.recorder.after = self.note
        self.recorder.attach()
        self.mess = Mess(self.core, seed)
        self.saved: dict[int, Any] = {}

    def note(self, record: AnyRecord) -> None:
        if isinstance(record, Scheduled):
            self.undo.scheduled(record.step, record.block_ops)
        else:
            self.undo.changed(getattr(record, "step", 0), getattr(record, "block_ops", []))

    def step(self) -> None:
        self.mess.inputs()
        self.undo.before_schedule()
        self.saved[self.core.step_count] = (self.mess.random.getstate(), self.mess.added, self.state())
        self.core.schedule()
        self.mess.inputs()
        self.core.execute()
        self.core.update()

    def state(self) -> dict[str, Any]:
        header = self.recorder.view.header
        canonical = EngineView.from_keyframe(header, keyframe_of(self.core, 0.0, self.recorder.view)).canonical()
        canonical["owners"] = [sorted(owners) for owners in canonical["owners"]]
        return canonical

    def replay_from(self, step: int) -> None:
        """What `step` does from its schedule on, with the same commands as the first time."""
        random_state, self.mess.added, _state = self.saved[step]
        self.mess.random.setstate(random_state)
        self.core.schedule()
        self.mess.inputs()
        self.core.execute()
        self.core.update()

    def back(self, step: int) -> None:
        self.undo.restore(step)
        self.recorder.rewound(step)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_back_and_the_same_commands_again(seed: int, policy: str) -> None:
    machine = Machine(seed, scheduling_policy=policy, max_num_batched_tokens=20)
    where = random.Random(seed)
    for _ in range(25):
        for _ in range(where.randrange(1, 20)):
            machine.step()
        end = machine.core.step_count
        first = {record.step: comparable(record) for record in machine.recorder.steps}
        target = max(0, end - where.randrange(1, 12))
        machine.back(target)
        assert machine.state() == machine.saved[target][2]
        assert machine.recorder.view.canonical() == machine.recorder.view_at(target).canonical()
        check_invariants(machine.core.scheduler)
        machine.replay_from(target)
        while machine.core.step_count < end:
            machine.step()
        again = {record.step: comparable(record) for record in machine.recorder.steps}
        assert [again[step] for step in range(target, end)] == [first[step] for step in range(target, end)]


def test_kv_content_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain executor checks what attention would read; without the saved blocks, going on after `back` fails there."""

    def life() -> None:
        machine = Machine(1, max_num_batched_tokens=20)
        for _ in range(12):
            for _ in range(12):
                machine.step()
            target = machine.core.step_count - 8
            machine.back(target)
            machine.replay_from(target)

    life()
    monkeypatch.setattr(UndoLog, "_save", lambda self, blocks: None)
    with pytest.raises(Exception, match="execute of step"):
        life()


def test_memory_is_bounded_and_too_far_back_says_so() -> None:
    machine = Machine(2)
    machine.undo.limit_steps = 10
    for _ in range(40):
        machine.step()
    assert machine.undo.steps == list(range(30, 40))
    before = machine.state()
    with pytest.raises(LookupError, match="Cannot go back to step 3: steps 30 to 39 are kept"):
        machine.undo.restore(3)
    assert machine.state() == before
    machine.undo.limit_bytes = machine.undo.num_bytes // 2
    machine.step()
    assert len(machine.undo.steps) < 8
    assert machine.undo.num_bytes == sum(moment.num_bytes for moment in machine.undo._moments)


def test_in_the_middle_of_a_step() -> None:
    machine = Machine(3)
    core = machine.core
    core.add_request(request("a", list(range(10)), 4))
    for _ in range(3):
        machine.step()
    before = machine.saved[2][2]
    machine.undo.before_schedule()
    core.schedule()
    machine.back(3)
    assert core.next_phase == "schedule" and core.plan is None
    machine.back(2)
    assert machine.state() == before


def test_only_blocks_that_held_something_are_copied() -> None:
    machine = Machine(4, enable_prefix_caching=False)
    core = machine.core
    machine.mess.inputs = lambda: None  # type: ignore[method-assign]
    core.add_request(request("a", list(range(20)), 2))
    machine.step()
    assert machine.undo._moments[-1].saved == []
    machine.step()
    core.add_request(request("b", list(range(20)), 2))
    machine.step()  # takes the blocks of a, which ended in a kept step
    assert sum(len(blocks) for blocks, _content in machine.undo._moments[-1].saved) == 5
    executor = core.executor
    assert isinstance(executor, PlainExecutor)
    machine.back(1)
    assert np.array_equal(executor.slots[core.scheduler.running[0].block_ids].ravel()[:20], np.arange(20))
