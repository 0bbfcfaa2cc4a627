"""What watching costs: the time of a decode step with the recorder off, on, with the undo log, and with a Lab attached.

    python benchmarks/observe.py [--model smollm2-135m | --scripted] [--requests 64] [--steps 120] [--json]

One engine, one run: the three ways take turns, ten steps at a time, so that they meet the same machine. Medians. hooks:
the CPU time that the recorder (and the undo log) took themselves, measured around their calls; on a busy machine it says
more than the difference of the step times. lab: a Lab whose messages are serialised as a kernel does it and acknowledged at
once, as by a browser that is never behind, so that all 30 batches a second are sent. The last line with --json is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from jupyter_client.session import Session

from nbengine import LLM, SamplingParams
from nbengine.debug.debugger import Debugger

TURN = 10  # steps
WAYS = ("off", "recorder", "recorder+undo", "lab")


def make_llm(args: argparse.Namespace) -> LLM:
    length = args.prompt + (args.steps + 2 * TURN) * len(WAYS) + TURN
    options = {"max_model_len": length, "max_num_seqs": args.requests, "max_num_batched_tokens": max(2048, args.requests)}
    if args.scripted:
        from tests.scripted import scripted

        blocks = 1 + args.requests * -(-length // 16)
        return LLM("scripted", executor_cls=scripted(), num_gpu_blocks_override=blocks, **options)
    return LLM(args.model, **options)


class Clock:
    """Adds up the CPU time of this thread within some calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def timed(*args: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args)
            finally:
                self.seconds += time.thread_time() - start

        setattr(owner, name, timed)


def answer_at_once(lab: Any) -> None:
    """Stand in for kernel and browser: each message is put into its wire form, and acknowledged."""
    session = Session()

    def send(message: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        content = {"comm_id": lab.model_id, "data": {"method": "custom", "content": message}}
        session.serialize(session.msg("comm_msg", content))
        if "seq" in message:
            lab._receive({"kind": "ack", "seq": message["seq"]})

    lab.send = send
    lab._receive({"kind": "ready", "have": 0})


def attached(llm: LLM, way: str, clock: Clock) -> Debugger | None:
    if way == "off":
        return None
    debugger = Debugger(llm, undo=way == "recorder+undo")
    if way == "lab":
        answer_at_once(debugger.lab)
    for name in ("on_scheduled", "on_executed", "on_updated"):
        clock.around(debugger._window.recorder, name)
    if debugger.undo is not None:
        clock.around(debugger._window.gate, "before")
    return debugger


def measure(llm: LLM, args: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each step, and of the hooks in it, by way. All requests decode throughout."""
    engine = llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    for i in range(args.requests):
        engine.add_request(f"b{i}", [(37 * i + j) % 200 + 1 for j in range(args.prompt)], params)
    while any(r.num_output_tokens < 2 for r in llm.llm_engine.engine_core.core.scheduler.requests.values()):  # type: ignore[attr-defined]
        engine.step()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    hooks: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(-1, args.steps // TURN):  # the first turn warms up
        for way in WAYS:
            clock = Clock()
            debugger = attached(llm, way, clock)
            for _ in range(TURN):
                start, clock.seconds = time.perf_counter(), 0.0
                engine.step()
                if turn >= 0:
                    times[way].append(time.perf_counter() - start)
                    hooks[way].append(clock.seconds)
            if debugger is not None:
                debugger.detach()
    return times, hooks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--scripted", action="store_true", help="no model: the engine's own work is all of the step")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=16, help="tokens a prompt")
    parser.add_argument("--steps", type=int, default=120, help="steps measured each way")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    llm = make_llm(args)
    times, hooks = measure(llm, args)
    step = {way: statistics.median(seconds) for way, seconds in times.items()}
    hook = {way: statistics.median(seconds) for way, seconds in hooks.items()}
    result = {
        "model": "scripted" if args.scripted else args.model,
        "requests": args.requests,
        **{f"{way}_ms": round(seconds * 1e3, 4) for way, seconds in step.items()},
        **{f"{way}_hooks_ms": round(hook[way] * 1e3, 4) for way in WAYS[1:]},
        "recorder_share": round(hook["recorder"] / step["off"], 4),
        "undo_share": round((hook["recorder+undo"] - hook["recorder"]) / step["off"], 4),
        "lab_share": round(step["lab"] / step["off"] - 1, 4),
    }
    for name, value in result.items():
        print(f"{name:>24}  {value}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
