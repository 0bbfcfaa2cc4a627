"""R074: every way through a request's statuses is legal, illegal moves are refused by the API, and the waiting queue never
holds a running request. The random walk is tests/scheduler/test_machine.py; here are the moves that must be refused."""

from __future__ import annotations

import pytest

from nbengine.errors import InvalidRequestError
from nbengine.scheduler.request import RequestStatus
from tests.scheduler.desk import Desk
from tests.scheduler.test_machine import TestMachine as TestRandomWalk  # noqa: F401


def test_the_legal_life() -> None:
    desk = Desk()
    request = desk.add("a", 5)
    seen = [request.status]
    desk.step()
    seen.append(request.status)
    desk.scheduler.preempt(request)
    seen.append(request.status)
    desk.step()
    seen.append(request.status)
    desk.run()
    seen.append(request.status)
    assert seen == ["waiting", "running", "preempted", "running", "finished"]


def test_nothing_comes_back_from_the_dead() -> None:
    desk = Desk()
    request = desk.add("a", 5)
    desk.step()
    assert desk.scheduler.finish_requests("a") == ["a"]
    with pytest.raises(InvalidRequestError, match="'a' is finished"):
        desk.scheduler.preempt(request)
    assert desk.scheduler.finish_requests("a") == []
    assert request.status is RequestStatus.FINISHED and desk.step().num_scheduled_tokens == {}


def test_a_waiting_or_preempted_request_cannot_be_preempted() -> None:
    desk = Desk()
    request = desk.add("a", 5)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="Only a running request"):
            desk.scheduler.preempt(request)
        desk.step()
        desk.scheduler.preempt(request)
