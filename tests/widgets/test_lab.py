"""The widgets themselves, with no browser: what is synced, what is sent up and down, what a reader without a kernel gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nbengine_widgets import static_page
from nbengine_widgets.static_page import page_html


def sent(lab: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(lab, "send", lambda message, _buffers=None: messages.append(message))
    return messages


def test_synced_state_is_a_few_hundred_bytes_beyond_the_bundle(lab: Any, source: Any) -> None:
    for _ in range(20):
        source.step()
    widgets = [lab, lab.control, lab.layout, lab.queues, lab.blocks, lab.timeline, lab.inspector]
    state = {
        widget.model_id: {k: v for k, v in widget.get_state().items() if k not in ("_esm", "_css")} for widget in widgets
    }
    lab_alone = [lab.model_id, lab.control.model_id]
    assert len(json.dumps([state[name] for name in lab_alone], default=str)) < 2000


def test_panes_carry_no_bundle_and_are_made_once(lab: Any) -> None:
    assert lab.queues is lab.queues
    assert lab.queues.lab_id == lab.model_id
    assert [lab.queues.pane, lab.blocks.pane, lab.timeline.pane, lab.inspector.pane] == [
        "queues", "blocks", "timeline", "inspector",
    ]  # fmt: skip
    assert len(lab.queues._esm) < 400


def test_commands_are_posted_and_unknown_ones_are_not(lab: Any, source: Any) -> None:
    lab._receive({"kind": "command", "id": 1, "name": "step", "args": {"count": 2}})
    lab._receive({"kind": "command", "id": 2, "name": "back", "args": {}})  # not among its capabilities
    lab._receive({"kind": "nonsense"})
    lab._receive([])  # type: ignore[arg-type]
    assert source.commands == [{"name": "step", "args": {"count": 2}, "id": 1}]


def test_source_lines_are_answered(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = sent(lab, monkeypatch)
    lab._receive({"kind": "command", "id": 7, "name": "source", "args": {"file": "scheduler.py", "line": 212}})
    assert messages[0]["kind"] == "source"
    assert messages[0]["found"]["first_line"] == 210


def test_hello_says_in_which_thread_it_was_handled(lab: Any) -> None:
    import threading

    lab.control._on_message(lab.control, {"kind": "hello"}, [])
    assert (lab.control.hellos, lab.control.answered_off_main) == (1, False)
    thread = threading.Thread(target=lab.control._on_message, args=(lab.control, {"kind": "hello"}, []))
    thread.start()
    thread.join()
    assert (lab.control.hellos, lab.control.answered_off_main) == (2, True)


def test_the_bundle_of_a_cell_has_a_widget_and_a_picture(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = lab._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == "step 0"
    assert "<b>step 0</b>" in data["text/html"]
    monkeypatch.setenv("NBENGINE_STATIC", "1")
    for widget in (lab, lab.timeline):
        data, _ = widget._repr_mimebundle_()
        assert set(data) == {"text/plain", "text/html"}


def test_a_picture_that_fails_does_not_take_the_widget_along(lab: Any, source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "static_bundle", lambda: 1 / 0)
    data, _ = lab._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data


def test_closing_leaves_nothing_behind(source: Any, bundle: Path) -> None:
    """R099, the kernel's part."""
    from nbengine_widgets import Lab

    for _ in range(3):
        lab = Lab(source)
        _ = lab.queues, lab.timeline
        lab._receive({"kind": "ready", "have": 0})
        lab.close()
        lab.close()
        assert source.listeners == []
        assert lab.publisher._thread is not None and not lab.publisher._thread.is_alive()
        assert lab.comm is None and lab.control.comm is None and lab.queues.comm is None


def test_a_static_page_needs_nothing_else(source: Any, bundle: Path) -> None:
    page = page_html([b"</script><b>", b"x"], title="<run>")
    assert "&lt;run&gt;" in page
    assert "http://" not in page and "https://" not in page
    assert page.count("</script>") == 3


def test_a_missing_bundle_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_page, "STATIC", tmp_path)
    with pytest.raises(FileNotFoundError, match="npm run build"):
        page_html([])


def test_importing_needs_neither_torch_nor_zmq() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['zmq'] = None\n"
        "import nbengine_widgets.source, nbengine_widgets.publisher, nbengine_widgets.static_page"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
