"""One JupyterLab server and one browser for all tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.ui.lab_server import LabPage, LabServer, chromium_path, launch

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(scope="package")  # Playwright's sync API holds the thread's event loop: no longer than this folder
def browser() -> Iterator[Browser]:
    if chromium_path() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, folder)
    return folder


@pytest.fixture(scope="session")
def lab_server(lab_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(lab_folder, tmp_path_factory.mktemp("jupyter"))
    yield server
    server.stop()


@pytest.fixture
def open_notebook(lab_server: LabServer, browser: Browser) -> Iterator[Callable[..., LabPage]]:
    """open_notebook(name, theme=…, width=…, script=…) -> LabPage; every page and kernel is closed afterwards."""
    pages: list[LabPage] = []

    def open_one(
        notebook: str, *, theme: str = "JupyterLab Light", width: int = 1680, height: int = 1300, script: str = ""
    ) -> LabPage:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.add_init_script(script)
        pages.append(LabPage(lab_server, page, notebook, theme=theme))
        return pages[-1]

    yield open_one
    for page in pages:
        page.close()
