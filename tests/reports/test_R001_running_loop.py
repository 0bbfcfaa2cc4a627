"""R001: the blocking calls work inside a running event loop (a notebook's), with no nest_asyncio and no stray coroutine;
the awaited run of the debugger works in the same loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from nbengine import SamplingParams
from tests.scripted import scripted_llm

PARAMS = SamplingParams(temperature=0, max_tokens=8)


def test_blocking_and_awaited_calls_in_one_running_loop() -> None:
    async def main() -> list[str]:
        llm = scripted_llm({"0": "hello", "a": "abc", "b": "later"})
        (output,) = llm.generate("x", PARAMS, use_tqdm=False)
        llm.llm_engine.add_request("a", "x", PARAMS)
        llm.llm_engine.step()
        (rest,) = llm.wait_for_completion(use_tqdm=False)
        debugger = llm.debug()
        debugger.add("y", "b", max_tokens=8, temperature=0)
        await debugger.arun()
        (awaited,) = llm.llm_engine.take_outputs(["b"])
        debugger.detach()
        llm.shutdown()
        return [each.outputs[0].text for each in (output, rest, awaited)]

    assert asyncio.run(main()) == ["hello", "abc", "later"]


def test_nobody_imports_nest_asyncio() -> None:
    code = """
import asyncio, sys
from tests.scripted import scripted_llm
async def main(): scripted_llm({"0": "hi"}).generate("x", use_tqdm=False)
asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("nest_asyncio")]
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
