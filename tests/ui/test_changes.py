"""What a person changes by hand, in a real JupyterLab: breakpoints, limits, requests, tokens; and the line that decided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator

from tests.ui.cells import ADD, ENGINE, write_notebook
from tests.ui.drawn import click, wait_for, wait_until_true_to_life
from tests.ui.lab_server import LabPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Open = Callable[..., LabPage]


def open_menu(lab: Locator, name: str) -> Locator:
    lab.locator(f"[data-menu={name}] > button").click()
    return lab.locator(".nbe-menu")


def test_breakpoints_are_made_edited_switched_off_and_removed(open_notebook: Open, lab_folder: Path) -> None:
    write_notebook(lab_folder / "breakpoints.ipynb", ENGINE + ADD, "dbg")
    page = open_notebook("breakpoints.ipynb")
    page.run_all()
    lab = page.lab()
    menu = open_menu(lab, "break")
    menu.locator("[name=event]").select_option("admitted")
    menu.locator("[name=request]").fill("r2")
    menu.locator("[name=once]").check()
    menu.get_by_role("button", name="add").click()
    menu.locator("[data-breakpoint='1']:has-text('admitted, request r2, once')").wait_for()
    menu.locator("[name=event]").select_option("preempted")
    menu.locator("[name=measure]").select_option("waiting")
    menu.locator("[name=sign]").select_option(">")
    menu.locator("[name=limit]").fill("0")
    menu.get_by_role("button", name="add").click()
    menu.locator("[data-breakpoint='2']:has-text('preempted, if waiting > 0')").wait_for()
    menu.get_by_role("button", name="Edit breakpoint 2").click()
    menu.locator("[name=count]").fill("2")
    menu.get_by_role("button", name="save 2").click()
    menu.locator("[data-breakpoint='2']:has-text('preempted, if waiting > 0, from time 2 on')").wait_for()
    menu.locator("[data-breakpoint='2'] input").click()
    wait_for(page, "not dbg.breakpoints[2].enabled")
    lab.page.keyboard.press("Escape")
    click(lab, "run")
    lab.locator(".nbe-chip:has-text('breakpoint 1: r2 admitted')").wait_for(timeout=60_000)
    wait_until_true_to_life(page, lab)
    assert page.ask("(dbg.breakpoints[1].hits, dbg.breakpoints[1].enabled, 'r2' in dbg.view.running)") == (1, False, True)
    menu = open_menu(lab, "break")
    menu.get_by_role("button", name="Remove breakpoint 1").click()
    wait_for(page, "[point.number for point in dbg.breakpoints] == [2]")
    assert page.errors == []


def test_limits_requests_tokens_and_the_prefix_cache_are_changed(open_notebook: Open, lab_folder: Path) -> None:
    write_notebook(lab_folder / "changes.ipynb", ENGINE + ADD, "dbg")
    page = open_notebook("changes.ipynb")
    page.run_all()
    lab = page.lab()
    menu = open_menu(lab, "change")
    menu.locator("[name=budget]").fill("16")
    menu.locator("[name=policy]").select_option("priority")
    menu.get_by_role("button", name="set").click()
    wait_for(page, "(dbg.core.config.scheduler.token_budget, dbg.core.config.scheduler.policy) == (16, 'priority')")
    menu.locator("[name=prompt]").fill("What is the moon made of?")
    menu.locator("form:has([name=prompt]) [name=priority]").fill("-5")
    menu.get_by_role("button", name="add").click()
    wait_for(page, "dbg.view.waiting[0] == 'r6'")
    lab.page.keyboard.press("Escape")
    for phase in ("execute", "update", "schedule"):
        click(lab, "phase")
        wait_for(page, f"str(dbg.core.next_phase) == {phase!r}")
    wait_until_true_to_life(page, lab)
    click(lab, "phase")
    click(lab, "phase")
    wait_for(page, "str(dbg.core.next_phase) == 'update'")
    wait_until_true_to_life(page, lab)
    name = page.ask("dbg.core.result.request_ids[0]")
    lab.locator(f".nbe-queues [data-request={name}]").click()
    lab.get_by_role("tab", name="Request").click()
    request = lab.locator(".nbe-controls")
    offered = request.locator(".nbe-form .nbe-pre[title]")
    assert "⟨" not in " ".join(offered.all_inner_texts()), "the alternatives have no text"
    request.locator("[name=token]").fill("42")
    request.get_by_role("button", name="take").click()
    wait_for(page, "dbg.core.result.sampled_token_ids[0] == [42]")
    click(lab, "phase")
    wait_for(page, f"dbg.view.requests[{name!r}].output_token_ids[-1] == 42")
    request.locator("[name=priority]").fill("7")
    request.get_by_role("button", name="set").click()
    wait_for(page, f"dbg.view.requests[{name!r}].priority == 7")
    request.get_by_role("button", name="preempt").click()
    wait_for(page, f"dbg.view.requests[{name!r}].status == 'preempted'")
    wait_until_true_to_life(page, lab)
    request.get_by_role("button", name="abort").click()
    wait_for(page, f"dbg.view.requests[{name!r}].finish_reason == 'abort'")
    menu = open_menu(lab, "change")
    menu.locator("[name=preempt]").check()
    menu.get_by_role("button", name="drop it").click()
    wait_for(page, "not any(dbg.view.hashes)")
    wait_until_true_to_life(page, lab)
    menu.locator("[name=seqs]").fill("99")
    menu.locator("[name=budget]").fill("3")
    menu.get_by_role("button", name="set").click()
    lab.locator(".nbe-banner:has-text('max_num_batched_tokens')").wait_for()
    told = "[r.what for r in dbg.recorder.records() if type(r).__name__ == 'Changed']"
    assert page.ask(told) == ["option", "edit_token", "priority", "preempt", "reset_prefix_cache"]
    assert page.errors == []


MINE = """\
from nbengine.scheduler.scheduler import Scheduler
class CheapestVictim(Scheduler):
    def choose_victim(self):
        return min(self.running, key=lambda request: request.num_computed_tokens)
dbg = dbg.fork(scheduler_cls=CheapestVictim)
"""


@pytest.mark.parametrize("own", [False, True], ids=["stock", "own"])
def test_the_source_tab_lights_the_line_that_decided(open_notebook: Open, lab_folder: Path, own: bool) -> None:
    """The stock scheduler's own line, and that of a scheduler which was written in a cell."""
    name = f"source_{own}.ipynb"
    write_notebook(lab_folder / name, ENGINE + (MINE if own else "") + ADD, "dbg.run('preempted')", "dbg")
    page = open_notebook(name)
    page.run_all()
    lab = page.lab()
    lab.get_by_role("tab", name="Why").click()
    lab.get_by_role("tabpanel").locator("dd button.nbe-link").click()
    lit = lab.locator(".nbe-source .nbe-here")
    lit.wait_for()
    if own:
        assert lit.inner_text().strip() == "def choose_victim(self):"
        assert "class CheapestVictim" in lab.locator(".nbe-source").inner_text()
    else:
        decision = "next(d for d in dbg.view.decisions if str(d.verdict).endswith('preempted'))"
        line = page.ask(f"{decision}.line")
        source = page.ask(
            "open(__import__('nbengine.scheduler.scheduler').scheduler.scheduler.__file__).read().splitlines()"
        )
        assert lit.inner_text().strip() == source[line - 1].strip()
    place = lit.bounding_box()
    box = lab.get_by_role("tabpanel").bounding_box()
    assert place and box and box["y"] <= place["y"] < box["y"] + box["height"], "the line is out of sight"
    assert page.errors == []
