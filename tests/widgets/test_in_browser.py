"""The bundle in a real browser: as a static page, and in a stand-in for anywidget. Skipped without Chromium or bundle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from nbengine_widgets.static_page import page_html
from playwright.sync_api import Browser, Page, expect

from tests.widgets.pages import commands, host, show, story

pytestmark = pytest.mark.browser


# ---------------------------------------------------------------------------------------------------------- static page


def test_the_static_page_plays_without_any_network(page: Page, tmp_path: Path) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show(page, story().records, tmp_path)
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []
    assert page.locator(".nbe-step").text_content() == "step 42"
    page.locator("[data-command=goto]").click()
    page.wait_for_function("document.querySelector('.nbe-step').textContent === 'step 0'")
    page.locator("[data-command=step]").click()
    page.wait_for_function("document.querySelector('.nbe-step').textContent === 'step 1'")


def test_what_is_drawn_is_what_the_engine_says(page: Page, tmp_path: Path) -> None:
    engine = story()
    show(page, engine.records, tmp_path)
    view = engine.canonical()
    for title, ids in (("waiting", view["waiting"]), ("running", view["running"])):
        section = page.locator(f".nbe-queues h4:has-text('{title}') + ul [data-request]")
        assert [row.get_attribute("data-request") for row in section.all()] == ids
    label = page.locator(".nbe-free").get_attribute("aria-label") or ""
    assert label.endswith(", ".join(map(str, view["free_queue"])))
    cells = page.locator("[role=gridcell]")
    for block, owners in enumerate(view["owners"][: cells.count()]):
        text = cells.nth(block).get_attribute("aria-label") or ""
        assert all(owner in text for owner in owners), text


# ---------------------------------------------------------------------------------------------------- R102: every reader


def test_r102_blocks_are_a_grid_for_keyboard_and_screen_reader(page: Page, tmp_path: Path) -> None:
    show(page, story().records, tmp_path)
    grid = page.get_by_role("grid")
    assert "32" in (grid.get_attribute("aria-label") or "")
    page.locator("[role=gridcell][tabindex='0']").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        before = page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.keyboard.press(key)
        page.wait_for_function("before => document.activeElement.getAttribute('aria-label') !== before", arg=before)
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("block ") and ("held by" in label or "cached" in label)
    assert page.locator("[role=gridcell][tabindex='0']").count() == 1


def test_r102_a_step_is_spoken_and_every_control_has_a_name_and_room(page: Page, tmp_path: Path) -> None:
    show(page, story().records, tmp_path)
    page.wait_for_function("document.querySelector('[aria-live=polite]').textContent.includes('preempted r7')")
    buttons = page.locator(".nbe-lab button").evaluate_all(
        "list => list.map(b => [b.getAttribute('aria-label') || b.textContent.trim(), b.getBoundingClientRect().height, "
        "b.getBoundingClientRect().width])"
    )
    assert all(name for name, _, _ in buttons)
    small = [(name, height, width) for name, height, width in buttons if height < 18 or width < 24]
    assert small == []


def test_blocks_can_be_read_as_a_table(page: Page, tmp_path: Path) -> None:
    show(page, story().records, tmp_path)
    page.get_by_role("button", name="table").click()
    row = page.locator(".nbe-blocks tbody tr").nth(1)
    assert "r4" in (row.text_content() or "")


def test_the_timeline_can_be_read_as_a_table_and_pointed_at(page: Page, tmp_path: Path) -> None:
    show(page, story().records, tmp_path)
    page.get_by_role("button", name="list", exact=True).click()
    row = page.locator(".nbe-steps tbody tr").first
    assert [row.locator("th").text_content(), row.locator(".nbe-what").text_content()] == ["42", "decoded 4, preempted r7."]
    page.locator(".nbe-steps tbody tr").nth(5).click()
    page.locator(".nbe-playhead:has-text('37')").wait_for()
    page.locator(".nbe-time").hover(position={"x": 84 + 3, "y": 60})
    assert "Step 0: " in (page.locator(".nbe-time .nbe-tip").text_content() or "")


# -------------------------------------------------------------------------------------------------------- R104: a crowd


def test_r104_ten_thousand_blocks_and_a_thousand_requests(page: Page, tmp_path: Path) -> None:
    from demo_engine import Ask, Engine

    engine = Engine(blocks=10_000, block_size=16, budget=4096, max_seqs=256, batches=False)
    for i in range(1000):
        engine.add(Ask(f"r{i}", 0, 40 + i % 90, 30))
    for _ in range(12):
        engine.schedule()
        engine.execute()
        engine.update()
    path = tmp_path / "lab.html"
    path.write_text(page_html(engine.records))
    started = time.monotonic()
    page.goto(path.as_uri())
    page.wait_for_selector(".nbe-map canvas")
    assert time.monotonic() - started < 8  # 2 s on a machine of one's own
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    text = page.locator(".nbe-queues h3").text_content() or ""
    assert f"{len(engine.waiting)} waiting, {len(engine.running)} running" in text


# ------------------------------------------------------------------------------------------------------- R099: two views


def test_r099_two_views_are_in_step_and_closing_them_leaks_nothing(page: Page) -> None:
    host(page, story(20).records)
    page.evaluate("async () => { views.push(await lab.show('two')); }")
    page.wait_for_selector("#two .nbe-bar")
    page.locator("#one [data-request=r4]").click()
    page.wait_for_selector("#two [data-request=r4][aria-pressed=true]")
    assert page.evaluate("document.querySelectorAll('.nbe-lab [id]').length") == 0
    page.evaluate("views[0].close()")
    assert page.locator("#one *").count() == 0
    page.locator("#two [data-command=step]").click()
    assert commands(page) == ["step"]
    page.evaluate("views[1].close()")
    for _ in range(3):
        page.evaluate("async () => { const view = await lab.show('again'); view.close(); view.el.remove(); }")
    listeners = page.evaluate("host.lab.handlers.length")
    assert listeners == 2  # the model's own: messages and capabilities
    page.evaluate("lab.end()")
    page.wait_for_timeout(400)
    sent = page.evaluate("host.control.sent.length")
    page.wait_for_timeout(700)
    assert page.evaluate("[host.lab.handlers.length, host.control.handlers.length, host.control.sent.length]") == [
        0,
        0,
        sent,
    ]


def test_keys_go_to_the_engine_only_from_within(page: Page) -> None:
    host(page, story(20).records)
    page.evaluate("window.leaked = []; document.addEventListener('keydown', e => leaked.push(e.key))")
    page.keyboard.press("s")
    assert commands(page) == []
    page.locator("#one .nbe-root").focus()
    for key in ("s", "n", "b", "Space", "ArrowLeft"):
        page.keyboard.press(key)
    assert commands(page) == ["step", "phase", "back", "run"]
    assert page.evaluate("leaked") == ["s"]
    banner = page.locator(".nbe-banner").first
    expect(banner).to_contain_text("viewing step 18 of 19; the engine is at 19")
    page.get_by_role("button", name="rewind to here").click()
    assert page.evaluate("host.control.sent.at(-1)")["args"] == {"step": 19}


def test_a_kernel_that_goes_away_leaves_a_recording(page: Page) -> None:
    host(page, story(20).records)
    page.evaluate("host.control.comm_live = false; host.control.fire('comm_live_update')")
    page.wait_for_selector(".nbe-banner-warn")
    assert "kernel gone: this is the saved trace" in (page.locator(".nbe-banner-warn").text_content() or "")
    page.locator("[data-command=back]").click()
    page.wait_for_function("document.querySelector('.nbe-step').textContent === 'step 18'")
    assert commands(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_r101_text_can_be_read_in_both_themes(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 950}, color_scheme=scheme)
    show(page, story().records, tmp_path)
    assert page.locator(".nbe-lab").get_attribute("data-theme") == scheme
    ground = page.locator(".nbe-lab").evaluate("el => getComputedStyle(el).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    page.close()
