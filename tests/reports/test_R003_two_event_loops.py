"""R003: an engine used from one event loop, then from another.

An engine has no loop of its own; `Debugger.arun` and `Debugger.play` use whichever runs.
"""

from __future__ import annotations

import asyncio

import pytest

from nbengine import LLM, SamplingParams
from nbengine.debug.debugger import Debugger
from tests.scripted import scripted_llm


def make() -> tuple[LLM, Debugger]:
    llm = scripted_llm({"a": "first", "b": "second", "c": "third", "d": "fourth", "0": "zero", "1": "one"})
    return llm, llm.debug()


async def make_in_a_loop() -> tuple[LLM, Debugger]:
    return make()


async def use(llm: LLM, dbg: Debugger, names: str) -> list[str]:
    """Run one request with arun, one with play, and one with a blocking call in between."""
    awaited, played = names
    dbg.add("x", awaited, max_tokens=10)
    await dbg.arun()
    blocking = llm.generate("y", SamplingParams(max_tokens=10), use_tqdm=False)[0]
    dbg.add("x", played, max_tokens=10)
    task = dbg.play()
    async with asyncio.timeout(20):
        while not dbg.output(played).finished:
            await asyncio.sleep(0.01)
    task.cancel()
    return [dbg.output(awaited).outputs[0].text, blocking.outputs[0].text, dbg.output(played).outputs[0].text]


@pytest.mark.parametrize("made_in_a_loop", [False, True])
def test_two_loops_in_a_row(made_in_a_loop: bool) -> None:
    llm, dbg = asyncio.run(make_in_a_loop()) if made_in_a_loop else make()
    assert asyncio.run(use(llm, dbg, "ab")) == ["first", "zero", "second"]
    assert asyncio.run(use(llm, dbg, "cd")) == ["third", "one", "fourth"]
