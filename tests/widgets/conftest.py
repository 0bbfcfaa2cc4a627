"""The pretend engine and source of widgets/tests, and a bundle to show (a stub if none is built)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbengine_widgets import static_page
from playwright.sync_api import Browser, Page, sync_playwright

from tests.ui.lab_server import chromium_path, launch

WIDGETS = Path(__file__).parents[2] / "widgets"
sys.path.insert(0, str(WIDGETS / "tests"))


@pytest.fixture
def source() -> Any:
    from demo_source import DemoSource

    return DemoSource()


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny bundle, so that these tests need no Node."""
    (tmp_path / "lab.js").write_text("export default {};")
    (tmp_path / "lab.css").write_text(".nbe-lab {}")
    monkeypatch.setattr(static_page, "STATIC", tmp_path)
    return tmp_path


@pytest.fixture
def lab(source: Any, bundle: Path) -> Iterator[Any]:
    from nbengine_widgets import Lab

    lab = Lab(source)
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium_path() is None or not (static_page.STATIC / "lab.js").exists():
        pytest.skip("needs Chromium and the built bundle")
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1400, "height": 950})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []
