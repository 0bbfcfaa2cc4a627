"""R022: what an engine in a thread has to say goes to the `nbengine` logger, never to stdout or stderr, where it would
land in whichever cell runs at the moment."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from nbengine import SamplingParams
from tests.scripted import scripted_llm


def test_an_engine_in_a_thread_prints_nothing_and_its_log_lines_arrive(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    llm = scripted_llm({"a": "x" * 20})
    texts: list[str] = []

    def work() -> None:
        llm.llm_engine.add_request("a", "x" * 8, SamplingParams(temperature=0, max_tokens=30))
        llm.llm_engine.step()
        llm.reset_prefix_cache()  # refused, which is logged
        texts.extend(output.outputs[0].text for output in llm.wait_for_completion(use_tqdm=False))

    with caplog.at_level(logging.DEBUG, "nbengine"):
        thread = threading.Thread(target=work)
        thread.start()
        sys.stdout.write("the other cell\n")
        thread.join()
    assert texts == ["x" * 20]
    assert capfd.readouterr() == ("the other cell\n", "")
    assert [record.threadName for record in caplog.records if "prefix cache" in record.message] == [thread.name]
