"""`nbengine schedule-trace`: files in, traces out, and every way to end."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nbengine.workload import schedule_trace
from nbengine.workload.schedule_trace import main, read_workloads, run_workload

ADD = {"step": 0, "add": {"request_id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 2, "ignore_eos": True}}


def workload(*events: dict[str, Any], **config: Any) -> dict[str, Any]:
    return {"name": "w", "config": config, "events": list(events)}


@pytest.mark.parametrize("kind", ["object", "list", "lines", "gzip"])
def test_files(kind: str, tmp_path: Path) -> None:
    one = workload(ADD)
    text = {"object": json.dumps(one, indent=1), "list": json.dumps([one, one])}.get(kind, f"{json.dumps(one)}\n" * 2)
    path, out = tmp_path / "in", tmp_path / ("out.gz" if kind == "gzip" else "out")
    path.write_bytes(gzip.compress(text.encode()) if kind == "gzip" else text.encode())
    assert main([str(path), "-o", str(out)]) == 0
    data = out.read_bytes()
    lines = (gzip.decompress(data) if kind == "gzip" else data).decode().splitlines()
    assert [json.loads(line)["end"] for line in lines] == ["done"] * (1 if kind == "object" else 2)
    assert read_workloads(path)[0] == one


def test_stdout_and_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(workload(ADD)))
    assert main([str(path)]) == 0
    trace = json.loads(capsys.readouterr().out)
    assert [step["tokens"] for step in trace["steps"]] == [[["a", [0]]], [["a", [230]]], []]
    path.write_text("[1]")
    assert main([str(path)]) == 2 and "has no workload" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2 and "nowhere" in capsys.readouterr().err


def test_options_that_contradict_each_other() -> None:
    trace = run_workload(workload(ADD, max_num_batched_tokens=4, max_num_seqs=8))
    assert trace["end"] == "config_error" and "max_num_batched_tokens=4" in trace["error"]
    assert run_workload(workload(ADD, async_scheduling=True))["end"] == "config_error"


def test_refusals_have_a_code() -> None:
    def add(name: str, prompt: list[int], **more: Any) -> dict[str, Any]:
        return {"step": 0, "add": {"request_id": name, "prompt_token_ids": prompt, **more}}

    trace = run_workload(
        workload(
            add("empty", []),
            add("long", [1] * 40),
            add("never", [1] * 30),
            add("bad", [1], max_tokens=1, min_tokens=2),
            add("ok", [1], max_tokens=1),
            add("ok", [1]),
            max_model_len=40,
            num_blocks=6,
        )
    )
    assert [(entry["id"], entry["error"]) for entry in trace["steps"][0]["rejected"]] == [
        ("empty", "empty_prompt"),
        ("long", "prompt_too_long"),
        ("never", "never_fits"),
        ("bad", "invalid_parameter"),
        ("ok", "duplicate_id"),
    ]


def test_max_steps_and_what_is_left() -> None:
    trace = run_workload(workload(ADD) | {"max_steps": 1})
    assert (trace["end"], trace["left"], len(trace["steps"])) == ("max_steps", ["a"], 1)


def test_a_stall_ends_after_four_steps() -> None:
    grows = ADD | {"add": ADD["add"] | {"max_tokens": 30}}  # type: ignore[operator]
    trace = run_workload(workload(grows, num_blocks=3, max_model_len=64))  # a pool smaller than the context
    assert (trace["end"], trace["left"]) == ("stalled", ["a"])
    assert [step["scheduled"] for step in trace["steps"][-4:]] == [[]] * 4 and trace["steps"][-5]["scheduled"]


def test_an_exception_is_told_with_the_step_it_happened_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(schedule_trace.Scheduler, "update_from_output", fail)
    trace = run_workload(workload(ADD))
    assert (trace["end"], trace["error"], trace["partial"]["scheduled"]) == ("exception", "RuntimeError: boom", [["a", 3]])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no JSON"),
        (b"{nope", "is no JSON.*line 1"),
        (b'{"name": "a"}\n{nope', "line 2 is no JSON"),
        (b"5", "has no workload"),
        (b"[]", "has no workload"),
        (b"\xff\xfe", "is no text"),
        (b"\x1f\x8b\x08\x00junk", "is no text"),
        (b'{"config": null}', "workload 1.*config"),
        (b'[{}, {"name": "b", "config": {"num_blocks": "8"}}]', r"workload 2 .b.*num_blocks"),
        (b'{"events": [{"add": {"prompt_token_ids": [1]}}]}', "request_id"),
        (b'{"events": [{"abort": "r"}]}', "abort"),
        (b'{"events": [{"pause": "maybe"}]}', "pause"),
        (b'{"events": [{"step": "x"}]}', "step"),
    ],
)
def test_a_file_that_is_no_workload_is_one_sentence(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w"
    path.write_bytes(content)
    assert main([str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and str(path) in said.err
    assert re.search(words, said.err), said.err


def test_keys_that_the_format_does_not_have_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w"
    path.write_text(json.dumps(workload(ADD | {"jump": 1}, colour=2) | {"seed": 3}))
    assert main([str(path)]) == 0
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["'colour'", "'jump'", "'seed'"]


@pytest.mark.parametrize("name", ["block_size", "num_blocks", "vocab_size", "prefill_schedule_interval"])
def test_numbers_that_make_no_sense_are_config_errors(name: str) -> None:
    trace = run_workload(workload(ADD, **{name: 0}))
    assert trace["end"] == "config_error" and name in trace["error"]
