"""Traces: small, append-safe, readable as far as they go, and without an engine."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nbengine import LLM
from nbengine.debug import trace_cli
from nbengine.debug.compare import comparable
from nbengine.debug.debugger import Debugger
from nbengine.debug.trace import Sparse, Trace
from nbengine.executor.base import ModelFacts
from nbengine.observe.records import AnyRecord
from nbengine.plan import NewRequestData
from tests.observe.engines import make_llm
from tests.scripted import ScriptedExecutor

CHROME = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "name", "pid"],
                "properties": {
                    "ph": {"enum": ["X", "C", "M", "i"]},
                    "name": {"type": "string", "minLength": 1},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "ts": {"type": "number", "minimum": 0},
                    "dur": {"type": "number", "minimum": 0},
                    "s": {"enum": ["t", "p", "g"]},
                    "args": {"type": "object"},
                },
                "allOf": [
                    {"if": {"properties": {"ph": {"const": "X"}}}, "then": {"required": ["ts", "dur", "tid"]}},
                    {"if": {"properties": {"ph": {"const": "C"}}}, "then": {"required": ["ts", "args"]}},
                    {"if": {"properties": {"ph": {"const": "i"}}}, "then": {"required": ["ts", "s"]}},
                ],
            },
        },
    },
}


@pytest.fixture(scope="module")
def dbg() -> Debugger:
    """Eight requests through a small pool: chunks, preemptions, hits, an abort, ends."""
    dbg = make_llm(num_blocks=14, max_model_len=48, max_num_batched_tokens=12).debug()
    for i in range(8):
        dbg.add("abcdefgh" + str(i) * (3 + i), max_tokens=14, temperature=0, ignore_eos=True)
    dbg.step(6)
    dbg.abort("r4")
    dbg.run()
    return dbg


def test_saved_and_opened_it_is_the_same(dbg: Debugger, tmp_path: Path) -> None:
    path = dbg.trace.save(tmp_path / "run.nbtrace", tensors=True)
    trace = Trace.open(path)
    assert trace.records == list(filter(Sparse().keeps, dbg.trace.records)) and trace.problem is None
    assert trace.view.canonical() == dbg.view.canonical()
    plain = Trace.open(dbg.trace.save(tmp_path / "plain.nbtrace"))
    assert all(step.executed is None or step.executed.batch is None for step in plain.steps)
    assert [comparable(step) for step in plain.steps] == [comparable(step) for step in dbg.records]
    assert "steps" in str(trace) and trace.header.model == "plain"


def test_any_moment_of_a_trace(dbg: Debugger) -> None:
    trace = dbg.trace
    for step in (0, 1, 7, 20):
        for phase in ("schedule", "execute", "update"):
            assert trace.view_at(step, phase).canonical() == dbg.view_at(step, phase).canonical()
    with pytest.raises(LookupError, match="it ends at step"):
        trace.view_at(9999)


class AnyTokens(ScriptedExecutor):
    """Tokens of a real vocabulary's size, with no pattern in them."""

    facts = ModelFacts(max_len=4096, vocab_size=49152)

    def _sample(self, known: NewRequestData) -> int:
        return zlib.crc32(f"{known.request_id}:{len(known.token_ids)}".encode()) % 49152


def test_a_thousand_steps_of_64_requests_fit_in_a_megabyte(tmp_path: Path) -> None:
    options = {"max_model_len": 1100, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    llm = LLM("any", executor_cls=AnyTokens, skip_tokenizer_init=True, num_gpu_blocks_override=64 * 72, **options)
    dbg = Debugger(llm, undo=False)
    dbg.add_group([32 + i for i in range(64)], max_tokens=1000, temperature=0)
    dbg.run(until=1000)
    assert len(dbg.records) >= 1000
    path = dbg.trace.save(tmp_path / "run.nbtrace")
    assert path.stat().st_size < 700_000
    assert Trace.open(path).view.canonical() == dbg.view.canonical()


# --------------------------------------------------------------------------------------------------------------- perfetto


def test_chrome_trace(dbg: Debugger, tmp_path: Path) -> None:
    path = dbg.trace.to_perfetto(tmp_path / "run.json")
    trace = json.loads(path.read_bytes())
    jsonschema.validate(trace, CHROME)
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {"schedule", "execute", "update", "prefill", "decode", "waiting", "preempted"} <= {e["name"] for e in slices}
    assert {e["name"] for e in events if e["ph"] == "C"} == {"KV cache usage", "queues", "tokens per step"}
    lanes = {event["tid"] for event in slices if event["pid"] == 2}
    assert lanes == set(range(1, 9))
    for lane in [(1, 1), *((2, lane) for lane in lanes)]:
        assert_nested([e for e in slices if (e["pid"], e["tid"]) == lane])


def assert_nested(slices: list[dict[str, Any]]) -> None:
    """On one track slices follow each other or lie within each other."""
    open_until: list[float] = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        while open_until and open_until[-1] <= event["ts"] + 0.002:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + 0.002, event
        open_until.append(end)


def test_lanes_are_used_again(tmp_path: Path) -> None:
    dbg = make_llm(max_num_seqs=2).debug()
    for _ in range(3):
        dbg.add("x", max_tokens=2, ignore_eos=True)
        dbg.add("y", max_tokens=2, ignore_eos=True)
        dbg.run()
    trace = json.loads(dbg.trace.to_perfetto(tmp_path / "x.json").read_bytes())
    assert {e["tid"] for e in trace["traceEvents"] if e["pid"] == 2 and e["ph"] == "X"} == {1, 2}


# ------------------------------------------------------------------------------------------------------------ the command


def run_cli(*words: str) -> int:
    parser = argparse.ArgumentParser()
    trace_cli.add_arguments(parser)
    return trace_cli.run(parser.parse_args(words))


def test_the_command(dbg: Debugger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(dbg.trace.save(tmp_path / "run.nbtrace", tensors=True))
    assert run_cli("info", path) == 0
    assert "model plain" in capsys.readouterr().out
    assert run_cli("perfetto", path) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run.json")
    assert run_cli("convert", path) == 0
    assert (tmp_path / "run-converted.nbtrace").stat().st_size < Path(path).stat().st_size
    assert run_cli("info", str(tmp_path / "run.json")) == 1
    assert "is no nbengine trace" in capsys.readouterr().err
    assert run_cli("info", str(tmp_path / "nothing")) == 1


@pytest.mark.parametrize("module", ["nbengine.debug.trace", "nbengine.observe.records", "nbengine.debug.trace_cli"])
def test_reading_needs_neither_torch_nor_zmq(module: str, dbg: Debugger, tmp_path: Path) -> None:
    path = dbg.trace.save(tmp_path / "run.nbtrace")
    code = (
        "import sys\n"
        "for name in ('torch', 'zmq', 'transformers'): sys.modules[name] = None\n"
        f"import {module}\n"
        "from nbengine.debug.trace import Trace\n"
        f"print(len(Trace.open({str(path)!r}).steps)); Trace.open({str(path)!r}).to_perfetto({str(tmp_path / 'x.json')!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(dbg.records)


def test_records_are_all_of_the_schema() -> None:
    assert {kind.__struct_config__.tag for kind in AnyRecord.__args__} == {
        "header", "texts", "added", "aborted", "changed", "scheduled", "executed", "updated", "failed", "keyframe",
    }  # fmt: skip
