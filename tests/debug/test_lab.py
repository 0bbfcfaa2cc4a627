"""The Debugger finds the Lab by name, and shows without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nbengine.debug import display
from nbengine.debug.texts import token_texts
from nbengine.errors import NBEngineError
from tests.observe.engines import make_llm
from tests.scripted import ByteTokenizer


def test_one_lab_a_debugger() -> None:
    pytest.importorskip("nbengine_widgets")
    dbg = make_llm().debug()
    lab = dbg.lab
    assert lab is dbg.lab and lab.source is dbg._source
    dbg.add("hello", max_tokens=2)
    dbg.run()
    lab.close()


def test_without_the_widgets_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nbengine_widgets", None)
    dbg = make_llm().debug()
    with pytest.raises(NBEngineError, match="needs the package nbengine_widgets"):
        dbg.trace.to_html(tmp_path / "x.html")


def test_static_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBENGINE_STATIC", "1")
    assert not display.has_lab()


def test_the_text_of_single_tokens() -> None:
    texts = token_texts(ByteTokenizer())
    assert texts([104, 32, 0xC3, 0xA9, 256]) == ["h", " ", "\\xc3", "\\xa9", "<eos>"]
