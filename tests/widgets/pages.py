"""Pages with a Lab in them: static ones, and a stand-in for anywidget."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from nbengine_widgets.static_page import STATIC, page_html
from playwright.sync_api import Page

HOST = Path(__file__).with_name("fake_host.js")
WIDGETS = Path(__file__).parents[2] / "widgets"


def story(steps: int = 43) -> Any:
    import demo

    return demo.story(steps)


def show(page: Page, records: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "lab.html"
    path.write_text(page_html(records))
    page.goto(path.as_uri())
    page.wait_for_selector(".nbe-root")


def host(page: Page, records: list[bytes]) -> None:
    """A page with one Lab model that holds `records`, and one view of it."""
    page.set_content(f"<style>{(STATIC / 'lab.css').read_text()}</style><body></body>")
    page.evaluate(HOST.read_text(), (STATIC / "lab.js").read_text())
    page.evaluate("async () => { window.lab = await host.start(); window.views = [await lab.show('one')]; }")
    page.evaluate("list => host.send('batch', 0, list)", [base64.b64encode(record).decode() for record in records])
    page.wait_for_selector("#one .nbe-bar")


def commands(page: Page) -> list[str]:
    return list(page.evaluate("host.control.sent.filter(m => m.kind === 'command').map(m => m.name)"))
