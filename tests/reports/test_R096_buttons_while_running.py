"""R096: buttons are dead while a cell runs. An awaited or background run hears them within a step; a plain run hears
them at once where the kernel has a second thread for them, and else says so. A click counts once.
(tests/widgets/test_kernels.py has the same with real kernels and messages, ipykernel 6.31 to 7.4.)"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from nbengine.debug.debugger import Debugger
from tests.observe.engines import make_llm


def make() -> Debugger:
    dbg = make_llm(num_blocks=250, max_model_len=800).debug()
    dbg.add("hello", max_tokens=700, temperature=0, ignore_eos=True)
    return dbg


def click(dbg: Debugger, name: str, **args: Any) -> None:
    """In another thread, as a subshell handles it."""
    thread = threading.Thread(target=dbg.post, args=({"name": name, "args": args},))
    thread.start()
    thread.join()


def test_an_awaited_run_hears_pause_within_a_step() -> None:
    async def life() -> tuple[int, int, float]:
        dbg = make()
        run = asyncio.create_task(dbg.arun())
        while dbg.core.step_count < 5:
            await asyncio.sleep(0)
        clicked, at = dbg.core.step_count, time.monotonic()
        click(dbg, "pause")
        stop = await run
        assert stop.why == "paused by hand"
        return clicked, dbg.core.step_count, time.monotonic() - at

    clicked, stopped, took = asyncio.run(life())
    assert stopped - clicked <= 1 and took < 0.5


def test_a_plain_run_hears_a_click_of_another_thread_within_a_step() -> None:
    dbg = make()
    clicked: list[int] = []

    def person() -> None:
        while dbg.core.step_count < 5:
            time.sleep(0.001)
        dbg.post({"name": "pause"})
        clicked.append(dbg.core.step_count)

    thread = threading.Thread(target=person)
    thread.start()
    stop = dbg.run()
    thread.join()
    assert stop.why == "paused by hand" and dbg.core.step_count - clicked[0] <= 1
    assert "Interrupt ends it in any case" in (Debugger.run.__doc__ or "")


def test_a_click_counts_once_however_late_it_is_heard() -> None:
    async def life() -> None:
        dbg = make()
        for _ in range(3):
            dbg.step()
        for _ in range(4):
            click(dbg, "pause")
        click(dbg, "step")
        await asyncio.sleep(0.2)
        assert dbg.core.step_count == 4
        await asyncio.sleep(0.2)
        assert dbg.core.step_count == 4 and dbg.state() == ("paused", "paused by hand")

    asyncio.run(life())
