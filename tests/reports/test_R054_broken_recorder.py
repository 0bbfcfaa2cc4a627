"""R054: a plug-in that is missing, or raises in its hook, took the engine down."""

from __future__ import annotations

import logging

import pytest

from nbengine.observe.recorder import Recorder
from tests.observe.engines import make_core, request


class Broken(Recorder):
    """An observer whose hook for finished steps always raises."""

    def on_updated(self, outputs: object, seconds: float) -> None:  # type: ignore[override]
        raise ValueError("my hook is broken")


def test_an_observer_that_raises_is_reported_once_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    core = make_core()
    Broken(core).attach()
    core.add_request(request("a", [1, 2, 3], 5))
    with caplog.at_level(logging.ERROR), pytest.warns(UserWarning, match="my hook is broken") as warned:
        while core.has_unfinished_requests():
            core.step()
    assert len(warned) == 1 and caplog.text.count("The observer failed") == 1
    assert core.observer is None and core.step_count >= 5
    core.check_invariants()


def test_no_observer_at_all_is_fine() -> None:
    core = make_core()
    assert core.observer is None
    core.add_request(request("a", [1, 2, 3], 2))
    core.abort_requests(["a", "never there"])
    core.add_request(request("a", [1, 2, 3], 2))
    while core.has_unfinished_requests():
        core.step()
