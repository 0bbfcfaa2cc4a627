"""The Lab for every reader: axe-core finds nothing, forced colours keep it legible, and it fits narrow and zoomed pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.widgets.pages import WIDGETS, host, show, story

pytestmark = pytest.mark.browser
AXE = WIDGETS / "node_modules" / "axe-core" / "axe.min.js"
POINT = {"number": 1, "text": "preempted, once", "enabled": True, "hits": 0, "event": "preempted", "once": True, "count": 1}
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
LOOK = """levels => axe.run(".nbe-lab", { runOnly: levels }).then(({ violations }) => violations.flatMap(rule =>
  rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 160)} ${node.any.map(check => check.message).join("; ")}`)))"""


def live(page: Page) -> None:
    """A Lab that can be commanded, a breakpoint set, a step under way."""
    host(page, story(43).records)
    page.evaluate("point => host.status({ state: 'paused', reason: 'breakpoint 1', breakpoints: [point] })", POINT)
    page.locator(".nbe-queues [data-request=r4]").click()


def axe(page: Page) -> list[str]:
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci in widgets/")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    return list(page.evaluate(LOOK, LEVELS))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_tab_look_or_menu(page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    live(page)
    assert page.locator(".nbe-lab").get_attribute("data-theme") == scheme
    found: dict[str, list[str]] = {}
    for tab in ("Request", "Step", "Batch", "Why", "Source"):
        page.get_by_role("tab", name=tab).click()
        found[tab] = axe(page)
    for look in ("table", "prefixes", "map", "list"):
        page.get_by_role("button", name=look, exact=True).click()
        found[look] = axe(page)
    for menu in ("until", "break", "change"):
        page.locator(f"[data-menu={menu}] > button").click()
        found[menu] = axe(page)
        page.keyboard.press("Escape")
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_axe_can_find_something(page: Page) -> None:
    live(page)
    page.evaluate("document.querySelector('[data-command=step]').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('[data-command=step]').removeAttribute('title')")
    page.evaluate("document.querySelector('.nbe-step').style.color = '#ddd'")
    assert {problem.split(":")[0] for problem in axe(page)} == {"button-name", "color-contrast"}


def test_forced_colours_keep_text_lines_and_the_map(page: Page, tmp_path: Path) -> None:
    page.emulate_media(forced_colors="active")
    show(page, story().records, tmp_path)
    page.wait_for_timeout(300)
    canvas_text = page.evaluate(
        "() => { const e = document.createElement('i'); e.style.color = 'CanvasText'; document.body.append(e);"
        " return getComputedStyle(e).color; }"
    )
    for part in (".nbe-step", ".nbe-queues h3", ".nbe-why"):
        assert page.locator(part).first.evaluate("e => getComputedStyle(e).color") == canvas_text
    colours = page.locator(".nbe-map canvas").evaluate(
        """canvas => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const seen = new Set();
          for (let i = 0; i < data.length; i += 4 * 97) seen.add([...data.slice(i, i + 3)].join());
          return seen.size;
        }"""
    )
    assert colours >= 6


# 350: a Lab 700 px wide on a page zoomed to 200 %.
@pytest.mark.parametrize("width", [350, 500, 700, 1000, 2400])
def test_nothing_sticks_out_at_any_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 950})
    live(page)
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for menu in ("until", "break", "change"):
        page.locator(f"[data-menu={menu}] > button").click()
        box = page.locator(".nbe-menu").bounding_box()
        lab = page.locator(".nbe-lab").bounding_box()
        assert box and lab and lab["x"] <= box["x"] and box["x"] + box["width"] <= lab["x"] + lab["width"] + 1, (menu, box)
        page.keyboard.press("Escape")
    for pane in (".nbe-bar", ".nbe-queues", ".nbe-blocks", ".nbe-inspector", ".nbe-timeline"):
        box = page.locator(pane).bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= width, pane
