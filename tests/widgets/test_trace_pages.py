"""Saved runs in the Lab's page: one that ends in a failure opens there, one that was forked shows who was there before."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from nbengine.debug.trace import Trace
from nbengine.errors import StepError
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler
from tests.observe.engines import make_llm


class Broken(Scheduler):
    def choose_victim(self) -> Request:
        return self.running[len(self.running)]


def open_page(page: Page, trace: Trace, path: Path) -> None:
    trace.to_html(path)
    page.goto(path.as_uri())
    page.wait_for_selector(".nbe-root")


def test_the_file_of_a_failed_schedule_opens_at_the_step_that_failed(page: Page, tmp_path: Path) -> None:
    dbg = make_llm(num_blocks=11, scheduler_cls=Broken, max_num_batched_tokens=32, max_model_len=40).debug()
    dbg._window.crash_dir = tmp_path
    dbg.add_group([8, 8, 8], max_tokens=12)
    with pytest.raises(StepError, match="schedule of step 5 failed"):
        dbg.run()
    assert dbg._window.crash_file is not None
    open_page(page, Trace.open(dbg._window.crash_file), tmp_path / "crash.html")
    assert page.locator(".nbe-step").text_content() == "step 5"
    assert page.locator(".nbe-playhead").text_content() == "5"
    assert "step 5 failed in schedule" in (page.locator(".nbe-banner-bad").text_content() or "")
    why = page.get_by_role("tabpanel", name="Why").text_content() or ""
    assert "Step 5: failed" in why and "IndexError" in why
    page.get_by_role("tab", name="Step").click()
    page.get_by_role("tabpanel", name="Step").get_by_text("Step 5 failed in schedule: IndexError").wait_for()
    for key, step in (("Home", "0"), ("End", "5")):
        page.keyboard.press(key)
        page.locator(".nbe-playhead", has_text=step).wait_for()


def test_a_forks_page_opens_and_a_trace_with_rewinds_too(page: Page, tmp_path: Path) -> None:
    dbg = make_llm(max_num_seqs=2).debug()
    for name in ("r0", "r1", "r2", "r3"):
        dbg.add("abc", name, max_tokens=20, ignore_eos=True)
    fork = dbg.fork()
    fork.step(4)
    fork.back(2)
    fork.set(max_num_seqs=1)
    fork.step(3)
    open_page(page, Trace.open(fork.trace.save(tmp_path / "x.nbtrace")), tmp_path / "x.html")
    assert page.locator(".nbe-playhead").text_content() == "4"
    assert "r3" in (page.locator(".nbe-root").text_content() or "")
