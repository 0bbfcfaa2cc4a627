"""R016: the end of an engine is quiet: nothing on stderr that looks like a crash, shut down or just dropped."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

SCRIPT = """
from nbengine import LLM, SamplingParams
from nbengine.executor.simulated import SimulatedExecutor
llm = LLM("simulated", executor_cls=SimulatedExecutor)
dbg = llm.debug()
llm.generate("hello", SamplingParams(max_tokens=5), use_tqdm=False)
print("ready", flush=True)
"""


@pytest.mark.parametrize("end", ["llm.shutdown(); llm.shutdown()", "del llm, dbg", "llm.enqueue('left alone')", ""])
def test_nothing_is_said_and_the_process_ends_at_once(end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT + end], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "ready\n"
        began = time.monotonic()
        assert child.wait(timeout=20) == 0 and time.monotonic() - began < 3
        assert child.stderr.read() == ""
