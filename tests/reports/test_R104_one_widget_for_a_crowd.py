"""R104: a widget a block is too many. A Lab is two models whatever it shows. (tests/widgets/test_in_browser.py
counts the DOM nodes of 10,000 blocks and 1,000 requests, and the time to the first paint.)"""

from __future__ import annotations

from pathlib import Path

import pytest
from ipywidgets.widgets.widget import _instances
from nbengine_widgets import static_page

from tests.observe.engines import make_llm


def test_ten_thousand_blocks_and_a_thousand_requests_are_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lab.js", "lab.css"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(static_page, "STATIC", tmp_path)
    before = set(_instances)
    dbg = make_llm(num_blocks=10_000, max_num_seqs=1000, max_num_batched_tokens=8192).debug()
    for i in range(1000):
        dbg.add(f"hello {i}", max_tokens=2, temperature=0, ignore_eos=True)
    lab = dbg.lab
    dbg.run()
    assert len(dbg.view.finished) == 1000 and len(dbg.view.blocks) == 10_000
    made = [type(widget).__name__ for name, widget in _instances.items() if name not in before]
    assert sorted(made) == ["Lab", "LabControl", "Layout"]
    lab.close()
