"""R003: an engine used from one event loop, then from another.

An engine has no loop of its own; `Debugger.arun` uses whichever runs.
"""

from __future__ import annotations

import asyncio

import pytest

from nbengine import SamplingParams
from tests.scripted import scripted_llm


@pytest.mark.parametrize("made_in_a_loop", [False, True])
def test_two_loops_in_a_row(made_in_a_loop: bool) -> None:
    async def make() -> tuple[object, object]:
        return llm_and_debugger()

    def llm_and_debugger() -> tuple[object, object]:
        llm = scripted_llm({"a": "first", "b": "second", "0": "zero", "1": "one"})
        return llm, llm.debug()

    llm, dbg = asyncio.run(make()) if made_in_a_loop else llm_and_debugger()

    async def use(name: str) -> str:
        dbg.add("x", name, max_tokens=10)  # type: ignore[attr-defined]
        task = dbg.play() if name == "b" else None  # type: ignore[attr-defined]
        await (task if task is not None else dbg.arun())  # type: ignore[attr-defined]
        text = dbg.output(name).outputs[0].text  # type: ignore[attr-defined]
        blocking = llm.generate("y", SamplingParams(max_tokens=10), use_tqdm=False)  # type: ignore[attr-defined]
        assert blocking[0].outputs[0].text in ("zero", "one")
        return str(text)

    assert asyncio.run(use("a")) == "first"
    assert asyncio.run(use("b")) == "second"
