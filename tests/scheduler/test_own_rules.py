"""A rule of one's own that fails: whatever was wanted is refused with the rule's name, and nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from nbengine.errors import RuleError
from nbengine.scheduler.request import Request
from nbengine.scheduler.request_queue import FCFSQueue, RequestQueue
from nbengine.scheduler.scheduler import Scheduler
from tests.scheduler.desk import Desk
from tests.scheduler.state import state_of


class Raises(Scheduler):
    def waiting_key(self, request: Request) -> Any:
        raise RuntimeError("key bug")


class NoneSometimes(Scheduler):
    def waiting_key(self, request: Request) -> Any:
        return None if request.request_id == "odd" else request.num_prompt_tokens


class Mixed(Scheduler):
    def waiting_key(self, request: Request) -> Any:
        return "one" if request.request_id == "odd" else 1


class RaisesLater(Scheduler):
    """For a preempted request, and for a negative priority."""

    def waiting_key(self, request: Request) -> Any:
        if request.num_preemptions or request.priority < 0:
            raise RuntimeError("key bug")
        return request.arrival_time


class Aging(Scheduler):
    """Shortest first, but every step of waiting makes up for a token: a key of the moment."""

    def waiting_key(self, request: Request) -> Any:
        return self.step + request.num_prompt_tokens


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Raises, r"Raises cannot queue 'odd' in step 0: Raises.waiting_key raised RuntimeError for 'odd': key bug"),
        (NoneSometimes, r"NoneSometimes.waiting_key returned None for 'odd', which cannot be sorted .*TypeError"),
        (Mixed, r"Mixed.waiting_key returned 'one' for 'odd', which cannot be sorted .*'<' not supported"),
    ],
)
def test_adding_is_all_or_nothing(cls: type[Scheduler], says: str, policy: str) -> None:
    desk = Desk(cls=cls, policy=policy)
    if cls is not Raises:
        for name in "abc":
            desk.add(name, 3)
    before = state_of(desk.scheduler)
    for _ in range(2):
        with pytest.raises(RuleError, match=says):
            desk.add("odd", 3)
        assert state_of(desk.scheduler) == before
    if before["requests"]:
        desk.scheduler.finish_requests("b")
        desk.run()
        assert set(desk.reasons) == {"a", "c"}


def test_a_key_that_cannot_be_sorted_is_refused_even_alone() -> None:
    desk = Desk(cls=NoneSometimes)
    with pytest.raises(RuleError, match="returned None for 'odd'"):
        desk.add("odd", 3)
    assert not desk.scheduler.requests and not desk.scheduler.waiting


def test_the_stock_rule_is_named_too() -> None:
    desk = Desk(policy="priority")
    desk.add("a", 3)
    with pytest.raises(RuleError, match=r"waiting_key returned .*'urgent'"):
        desk.add("b", 3, priority="urgent")
    assert desk.waiting == ["a"]


def test_a_queue_of_ones_own_that_raises() -> None:
    class Full(FCFSQueue):
        def add(self, request: Request) -> None:
            raise IndexError("full")

    class Small(Scheduler):
        def make_queue(self) -> RequestQueue:
            return Full()

    desk = Desk(cls=Small)
    with pytest.raises(RuleError, match="Small cannot queue 'a' in step 0: IndexError: full"):
        desk.add("a", 3)
    assert not desk.scheduler.requests


@pytest.mark.parametrize("in_flight", [False, True])
def test_preempting_is_all_or_nothing(in_flight: bool) -> None:
    desk = Desk(cls=RaisesLater)
    request = desk.add("a", 6)
    desk.add("b", 6)
    desk.step()
    plan = desk.schedule() if in_flight else None
    before = state_of(desk.scheduler)
    with pytest.raises(RuleError, match=r"cannot queue 'a' in step \d: RaisesLater.waiting_key raised RuntimeError for 'a'"):
        desk.scheduler.preempt(request)
    with pytest.raises(RuleError, match="cannot queue 'b'"):
        desk.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert state_of(desk.scheduler) == before
    if plan is not None:
        desk.update(plan, desk.execute(plan))
    desk.run()
    assert {len(tokens) for tokens in desk.tokens.values()} == {8}


def test_a_priority_is_changed_all_or_nothing() -> None:
    desk = Desk(cls=RaisesLater)
    desk.add("a", 6)
    request = desk.add("b", 6)
    before = state_of(desk.scheduler)
    with pytest.raises(RuleError, match="cannot queue 'b' in step 0"):
        desk.scheduler.set_priority(request, -1)
    assert state_of(desk.scheduler) == before
    desk.scheduler.set_priority(request, 1)
    assert desk.waiting == ["a", "b"] and request.priority == 1


@pytest.mark.parametrize("victim", [None, "r1"])
def test_a_victim_that_is_no_request(victim: Any) -> None:
    class Gentle(Scheduler):
        def choose_victim(self) -> Request:
            return victim  # type: ignore[no-any-return]

    _refused(Gentle, f"Gentle.choose_victim returned {victim!r}; it must return one of self.running")


def test_a_victim_that_does_not_run() -> None:
    class Gentle(Scheduler):
        def choose_victim(self) -> Request:
            return self.waiting.peek()

    _refused(Gentle, r"Gentle.choose_victim returned Request\('c', waiting, .*; it must return one of self.running")


def _refused(cls: type[Scheduler], says: str) -> None:
    desk = Desk(usable=4, cls=cls, enable_prefix_caching=False, max_model_len=16)
    desk.add("a", 7)
    desk.add("b", 7)
    desk.step()
    desk.step()
    desk.add("c", 2)
    with pytest.raises(RuleError, match=says):
        desk.scheduler.schedule()


def test_a_restored_queue_keeps_the_keys_it_had() -> None:
    desk = Desk(cls=Aging, max_num_seqs=1)
    desk.add("running", 1, max_tokens=20)
    desk.add("early", 9)
    for _ in range(5):
        desk.step()
    desk.add("late", 6)  # 5 + 6 against 0 + 9
    assert desk.waiting == ["early", "late"]
    saved = desk.scheduler.snapshot()
    desk.scheduler.preview()
    desk.scheduler.restore(saved)
    desk.add("latest", 3)  # 5 + 3
    assert desk.waiting == ["latest", "early", "late"]


def test_a_key_that_fails_by_now_is_not_asked_again_for_a_restore() -> None:
    desk = Desk(cls=RaisesLater, max_num_seqs=1)
    desk.add("a", 6)
    desk.step()
    waits = desk.add("b", 6)
    waits.priority = -1
    before = state_of(desk.scheduler)
    desk.scheduler.restore(desk.scheduler.snapshot())
    assert state_of(desk.scheduler) == before


def test_another_class_asks_its_own_key() -> None:
    desk, other = Desk(cls=Aging, max_num_seqs=1), Desk(cls=NoneSometimes, max_num_seqs=1)
    for name, length in (("long", 9), ("short", 2)):
        desk.add(name, length)
    other.scheduler.restore(desk.scheduler.snapshot())
    assert other.waiting == ["short", "long"]
    stock = Desk(max_num_seqs=1)
    stock.scheduler.restore(desk.scheduler.snapshot())
    stock.add("last", 1)
    assert stock.waiting == ["short", "long", "last"]  # as they stood
