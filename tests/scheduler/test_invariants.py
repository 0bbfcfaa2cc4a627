"""Each way in which the books can be wrong is found and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nbengine.errors import InvariantError
from nbengine.scheduler.invariants import check_invariants, violations
from nbengine.scheduler.request import RequestStatus
from nbengine.scheduler.scheduler import Scheduler
from tests.scheduler.desk import Desk


def _desk() -> Desk:
    desk = Desk(usable=10, max_num_seqs=2)
    prompt = list(range(9))
    for name in "abc":
        desk.add(name, prompt)
    desk.step()
    desk.schedule()
    return desk


def _write_twice(scheduler: Scheduler) -> None:
    a, b = scheduler.running
    b.block_ids[-1] = a.block_ids[-1]


def _in_two_queues(scheduler: Scheduler) -> None:
    scheduler.waiting.add(scheduler.running[0])


def _lost(scheduler: Scheduler) -> None:
    scheduler.waiting.pop()


def _running_while_waiting(scheduler: Scheduler) -> None:
    scheduler.waiting.peek().status = RequestStatus.RUNNING


def _leak(scheduler: Scheduler) -> None:
    scheduler.kv.pool.free.popitem()


def _held_and_free(scheduler: Scheduler) -> None:
    scheduler.kv.pool.free[scheduler.running[0].block_ids[0]] = None


def _null_block(scheduler: Scheduler) -> None:
    scheduler.running[0].block_ids[0] = 0


def _wrong_count(scheduler: Scheduler) -> None:
    scheduler.kv.pool.ref_counts[scheduler.running[0].block_ids[0]] += 1


def _stale_hash(scheduler: Scheduler) -> None:
    scheduler.kv.pool.hashes[scheduler.kv.pool.num_usable] = b"stale"


def _over_budget(scheduler: Scheduler) -> None:
    scheduler.budget_in_flight = 1


def _too_far(scheduler: Scheduler) -> None:
    scheduler.running[0].num_computed_tokens += 5


def _ghost(scheduler: Scheduler) -> None:
    del scheduler.requests["c"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_write_twice, "both write slot"),
        (_in_two_queues, "a is in 2 queues"),
        (_lost, "c is in 0 queues"),
        (_running_while_waiting, "c is running, but not in running"),
        (_leak, "are neither held nor free"),
        (_held_and_free, "are in the free queue, but held"),
        (_null_block, "has the null block"),
        (_wrong_count, "has reference count 3, but 2 tables hold it"),
        (_stale_hash, "have a hash that is not the prefix index's"),
        (_over_budget, "The plan in flight has 2 tokens, more than its budget of 1"),
        (_too_far, "has 15 computed tokens of 10"),
        (_ghost, "c is in a queue, but not live"),
    ],
)
def test_damage_is_found(damage: Callable[[Scheduler], None], message: str) -> None:
    scheduler = _desk().scheduler
    assert violations(scheduler) == [] == scheduler.violations()
    damage(scheduler)
    found = violations(scheduler)
    assert any(message in violation.message for violation in found), found
    with pytest.raises(InvariantError, match="step 2: 2 running"):
        check_invariants(scheduler)
