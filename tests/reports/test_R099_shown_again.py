"""R099: a widget that is right when first shown and wrong when shown again. All views of a Debugger are views of one
model, and the front end keeps nothing outside a model. (Views in step, cells run again, leaks:
tests/widgets/test_in_browser.py with a stand-in for anywidget, tests/ui/test_life.py in JupyterLab.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbengine_widgets import static_page

from tests.observe.engines import make_llm

SOURCES = Path(__file__).parents[2] / "widgets" / "src"
WIDGET = "application/vnd.jupyter.widget-view+json"


def test_a_cell_run_again_shows_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lab.js", "lab.css"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(static_page, "STATIC", tmp_path)
    dbg = make_llm().debug()
    shown = {dbg._repr_mimebundle_()[0][WIDGET]["model_id"] for _ in range(4)}
    assert shown == {dbg.lab.model_id}
    panes = {dbg.lab.blocks._repr_mimebundle_()[0][WIDGET]["model_id"] for _ in range(3)}
    assert len(panes) == 1 and panes != shown
    dbg.lab.close()


def test_the_front_end_has_no_global_ids_and_no_store_of_the_module() -> None:
    files = list(SOURCES.rglob("*.ts*"))
    assert len(files) > 30
    for file in files:
        text = file.read_text()
        assert not re.search(r"getElementById|<[a-z]\w*[^>]*\sid=", text), file.name
        assert not re.search(r"^(const|let|var) \w+ = new (Store|Fold)", text, re.M), file.name
