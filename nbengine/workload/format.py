"""What a workload file holds, as types: tests/conformance/data/README.md in code."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec

Json = dict[str, Any]


class Options(msgspec.Struct, kw_only=True):
    """`config`: the scheduler's options, then the sampler stand-in's."""

    num_blocks: int = 64  # null block included
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_num_scheduled_tokens: int | None = None
    max_model_len: int = 256
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    prefill_schedule_interval: int = 1
    async_scheduling: bool = False
    num_speculative_tokens: int = 0
    max_loras: int = 0
    vocab_size: int = 1000
    eos_token_id: int = 2


class Add(msgspec.Struct, kw_only=True):
    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int | None = None
    min_tokens: int = 0
    priority: int = 0
    arrival_time: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool = False
    lora: int = 0
    repetition_detection: dict[str, int] | None = None
    outputs: list[int] | None = None
    eos_at: int | None = None
    accept_percent: int = 70


class Event(msgspec.Struct, kw_only=True):
    step: int = 0
    when: str = "start"  # "mid": between schedule and update
    add: Add | None = None
    abort: list[str] | None = None
    reset_prefix_cache: bool = False
    reset_running_requests: bool = False
    pause: Literal["none", "new", "all"] | None = None


class Workload(msgspec.Struct, kw_only=True):
    name: str = ""
    description: str = ""
    config: Options = msgspec.field(default_factory=Options)
    events: list[Event] = []
    max_steps: int = 2000


def read_workloads(path: Path) -> list[Json]:
    """The objects of a file that is one JSON object, a list of them, or one on each line; gzipped or not.

    Raises ValueError, with the file's name, if it is none of these, or an object is no workload.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no text, gzipped or not: {error}") from error
    found = _objects(path, text)
    if not found or not all(isinstance(workload, dict) for workload in found):
        raise ValueError(f"{path} has no workload: it must hold JSON objects.")
    for number, workload in enumerate(found, start=1):
        try:
            msgspec.convert(workload, Workload)
        except msgspec.ValidationError as error:
            name = f" ({workload['name']})" if workload.get("name") else ""
            raise ValueError(f"{path}, workload {number}{name}: {error}.") from error
    return found


def _objects(path: Path, text: str) -> list[Any]:
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":  # that is what JSON lines look like
            raise ValueError(f"{path} is no JSON: {error}.") from error
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is no JSON: {error}.") from error
    return found


def unknown_keys(workload: Json) -> list[str]:
    """Keys that the format does not have, and that are passed over."""
    events = workload.get("events", [])
    parts = [(workload, Workload), (workload.get("config", {}), Options)]
    parts += [(event, Event) for event in events] + [(event["add"], Add) for event in events if event.get("add")]
    return sorted({key for part, kind in parts for key in part if key not in kind.__struct_fields__})
