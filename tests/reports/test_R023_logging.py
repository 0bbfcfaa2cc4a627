"""R023: the root logger is left alone, a line is logged once however often nbengine is imported or an engine made, and
INFO is quiet unless asked for."""

from __future__ import annotations

import importlib
import logging

import pytest

import nbengine
from tests.scripted import scripted_llm


def test_handlers_do_not_pile_up(capfd: pytest.CaptureFixture[str]) -> None:
    root_before = list(logging.getLogger().handlers), logging.getLogger().level
    importlib.reload(nbengine)
    importlib.reload(nbengine)
    for _ in range(3):
        scripted_llm()
    logger = logging.getLogger("nbengine")
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == root_before
    logger.info("quiet")
    assert capfd.readouterr() == ("", "")

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        logger.warning("once")
    finally:
        logger.removeHandler(handler)
    assert lines == ["once"]
