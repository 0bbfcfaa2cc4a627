"""What the Lab shows, read from the page, and what the engine holds, read from the kernel: in one shape, to be compared."""

from __future__ import annotations

import re
import time
from typing import Any

from playwright.sync_api import Locator

from tests.ui.lab_server import LabPage

ENGINE = """{
    'step': dbg.core.step_count, 'phase': str(dbg.core.next_phase),
    'running': [r.request_id for r in dbg.core.scheduler.running],
    'waiting': [r.request_id for r in dbg.core.scheduler.waiting_requests()],
    'owners': {b: sorted(r.request_id for r in dbg.core.scheduler.requests.values() if b in r.block_ids)
               for b in range(1, dbg.core.scheduler.kv.pool.num_blocks)},
    'cached': sorted(b for b, h in enumerate(dbg.core.scheduler.kv.pool.hashes) if h),
    'free': list(dbg.core.scheduler.kv.pool.free),
    'computed': {r.request_id: r.num_computed_tokens for r in dbg.core.scheduler.requests.values()},
}"""


def differences(page: LabPage, lab: Locator) -> dict[str, tuple[Any, Any]]:
    """Facts in which the drawing and the engine differ: {name: (engine, drawn)}. Empty when the Lab tells the truth.

    The free queue is drawn as far as there is room for it.
    """
    engine, drawn = engine_state(page), drawn_state(lab)
    engine["free"] = engine["free"][: len(drawn["free"])]
    return {name: (engine[name], drawn[name]) for name in engine if engine[name] != drawn[name]}


def engine_state(page: LabPage) -> dict[str, Any]:
    return dict(page.ask(ENGINE))


def drawn_state(lab: Locator) -> dict[str, Any]:
    """The same facts as ENGINE, as a person (or a screen reader) finds them in the Lab."""
    owners: dict[int, list[str]] = {}
    cached: list[int] = []
    for label in lab.locator("[role=gridcell]").evaluate_all("cells => cells.map(c => c.ariaLabel)"):
        block = int(re.match(r"block (\d+)", label).group(1))  # type: ignore[union-attr]
        held = re.search(r", held by ([^,]+)", label)
        if block:
            owners[block] = sorted(held.group(1).split(" and ")) if held else []
        if ", hash " in label:
            cached.append(block)
    queue = lab.locator(".nbe-free").get_attribute("aria-label") or ""
    return {
        "step": int(lab.locator(".nbe-step").inner_text().removeprefix("step ")),
        "phase": lab.locator(".nbe-lamp .nbe-now").inner_text(),
        "running": _ids(lab, "running, in admission order"),
        "waiting": _ids(lab, "waiting, next first"),
        "owners": owners,
        "cached": sorted(cached),
        "free": [int(b) for b in re.findall(r"\d+", queue)],
        "computed": _computed(lab),
    }


def _ids(lab: Locator, heading: str) -> list[str]:
    rows = lab.locator(f"h4:text-is('{heading}') ~ ul").first.locator("[data-request]")
    return [str(i) for i in rows.evaluate_all("rows => rows.map(r => r.dataset.request)")]


def _computed(lab: Locator) -> dict[str, int]:
    rows = lab.locator(".nbe-queues [data-request]").evaluate_all(
        "rows => rows.map(r => [r.dataset.request, r.querySelector('.nbe-track').ariaLabel])"
    )
    found: dict[str, int] = {}
    for name, label in rows:
        parts = re.match(r"(\w+), (\d+) of \d+ tokens computed$", label)
        if parts and parts.group(1) != "finished":
            found[name] = int(parts.group(2))
    return found


def wait_until_true_to_life(page: LabPage, lab: Locator, timeout_s: float = 60) -> None:
    """Until the drawing shows what the engine holds; fails with the differences."""
    deadline = time.monotonic() + timeout_s
    while found := differences(page, lab):
        if time.monotonic() > deadline:
            raise AssertionError(f"the Lab and the engine differ (engine, drawn): {found}")
        page.page.wait_for_timeout(100)


def wait_for(page: LabPage, expression: str, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not page.ask(expression):
        if time.monotonic() > deadline:
            raise AssertionError(f"never true: {expression}")
        page.page.wait_for_timeout(100)


def click(lab: Locator, command: str) -> None:
    lab.locator(f"[data-command={command}]").click()
