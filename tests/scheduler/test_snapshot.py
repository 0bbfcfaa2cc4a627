"""A snapshot brings everything back, costs little, and makes a second scheduler of the same state."""

from __future__ import annotations

from tests.scheduler.desk import Desk
from tests.scheduler.state import state_of


def busy_desk() -> Desk:
    desk = Desk(usable=12, max_num_seqs=4)
    for number in range(6):
        desk.add(f"r{number}", [number % 2 * 50 + position for position in range(10)], max_tokens=12)
    for _ in range(4):
        desk.step()
    return desk


def test_back_and_forth() -> None:
    desk = busy_desk()
    snapshots, states = [], []
    for _ in range(12):
        snapshots.append(desk.scheduler.snapshot())
        states.append(state_of(desk.scheduler))
        desk.step()
    for number in (11, 3, 7, 0, 11):  # later ones hold after earlier ones were restored
        desk.scheduler.restore(snapshots[number])
        assert state_of(desk.scheduler) == states[number]
    desk.scheduler.restore(snapshots[0])
    for state in states:
        assert state_of(desk.scheduler) == state
        desk.step()


def test_in_mid_step() -> None:
    desk = busy_desk()
    plan = desk.schedule()
    saved, state = desk.scheduler.snapshot(), state_of(desk.scheduler)
    desk.update(plan, desk.execute(plan))
    after = state_of(desk.scheduler)
    desk.run()
    desk.scheduler.restore(saved)
    assert state_of(desk.scheduler) == state
    desk.update(plan, desk.execute(plan))
    assert state_of(desk.scheduler) == after


def test_live_requests_keep_their_objects_and_ended_ones_come_back() -> None:
    desk = busy_desk()
    kept = dict(desk.scheduler.requests)
    saved = desk.scheduler.snapshot()
    desk.step()
    ended = next(iter(kept))
    desk.scheduler.finish_requests(ended)
    desk.scheduler.restore(saved)
    assert {name: request is kept[name] for name, request in desk.scheduler.requests.items()} == {
        name: name != ended for name in kept
    }


def test_a_fork_goes_its_own_way() -> None:
    desk, fork = busy_desk(), Desk(usable=12, max_num_seqs=4)
    fork.scheduler.restore(desk.scheduler.snapshot())
    before = state_of(desk.scheduler)
    assert state_of(fork.scheduler) == before
    fork.run()
    assert state_of(desk.scheduler) == before
    desk.run()
    assert {name: ids[-5:] for name, ids in desk.tokens.items() if name in fork.tokens} == {
        name: ids[-5:] for name, ids in fork.tokens.items()
    }


def test_changed_options_go_back_too() -> None:
    desk = busy_desk()
    saved = desk.scheduler.snapshot()
    desk.scheduler.config.scheduler.max_num_seqs = 1
    desk.scheduler.pause_state = "all"
    desk.scheduler.restore(saved)
    assert desk.scheduler.config.scheduler.max_num_seqs == 4 and desk.scheduler.pause_state == "none"


def test_its_size_does_not_grow_with_the_tokens() -> None:
    small, large = Desk(usable=2000, max_model_len=8000), Desk(usable=2000, max_model_len=8000)
    small.add("a", 10)
    large.add("a", 7000)
    few, many = small.scheduler.snapshot().nbytes, large.scheduler.snapshot().nbytes
    assert few == many < 100_000
