"""What watching costs: the time of a decode step with the recorder off, on, with the undo log, and with a Lab attached.

    python benchmarks/observe.py [--model smollm2-135m | --scripted] [--requests 64] [--steps 120] [--json]

One engine, one run: the ways take turns, ten steps at a time, so that they meet the same machine. Medians. The difference
of step times drowns in a busy machine's noise, so the shares are of what can be told apart: hooks, the CPU time of the
recorder's (and the undo log's) own calls; rest, a step without its pass through the model; sent, the CPU time of the thread
that sends to a Lab, of a step. The Lab's share is what rest grows by, and sent. lab: a Lab whose messages are serialised as
a kernel does it and acknowledged at once, as by a browser that is never behind, so that all 30 batches a second are sent.
The last line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from compare import stamp
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
    """Adds up the time within some calls: by default the CPU time of the thread that makes them."""

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        self.seconds, self._now = 0.0, now

    def around(self, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def timed(*args: Any) -> Any:
            start = self._now()
            try:
                return call(*args)
            finally:
                self.seconds += self._now() - start

        setattr(owner, name, timed)

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


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


def attached(llm: LLM, way: str, hooks: Clock, sent: Clock) -> Debugger | None:
    if way == "off":
        return None
    debugger = Debugger(llm, undo=way == "recorder+undo")
    if way == "lab":
        sent.around(debugger.lab.publisher, "flush")
        answer_at_once(debugger.lab)
    for name in ("on_scheduled", "on_executed", "on_updated"):
        hooks.around(debugger._window.recorder, name)
    if debugger.undo is not None:
        hooks.around(debugger._window.gate, "before")
    return debugger


def measure(llm: LLM, args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds of each step by way: of "step", "rest", "hooks" and "sent". All requests decode throughout."""
    engine: Any = llm.llm_engine
    core = engine.engine_core.core
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    for i in range(args.requests):
        engine.add_request(f"b{i}", [(37 * i + j) % 200 + 1 for j in range(args.prompt)], params)
    while any(r.num_output_tokens < 2 for r in core.scheduler.requests.values()):
        engine.step()
    passing = Clock(time.perf_counter)
    if not args.scripted:
        passing.around(core.executor.model, "forward")
    found: dict[str, dict[str, list[float]]] = {
        way: {kind: [] for kind in ("step", "rest", "hooks", "sent")} for way in WAYS
    }
    for turn in range(-1, args.steps // TURN):  # the first turn warms up
        for way in WAYS:
            hooks, sent = Clock(), Clock()
            debugger = attached(llm, way, hooks, sent)
            for _ in range(TURN):
                passing.take()
                start = time.perf_counter()
                engine.step()
                step = time.perf_counter() - start
                taken = {"step": step, "rest": step - passing.take(), "hooks": hooks.take(), "sent": sent.take()}
                if turn >= 0:
                    for kind, seconds in taken.items():
                        found[way][kind].append(seconds)
            if debugger is not None:
                debugger.detach()
    return found


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
    found = measure(llm, args)
    ms = {way: {kind: 1e3 * statistics.median(found[way][kind]) for kind in found[way]} for way in WAYS}
    ms["lab"]["sent"] = 1e3 * statistics.fmean(found["lab"]["sent"])  # not with every step, and sometimes twice
    off, lab = ms["off"], ms["lab"]
    result = stamp() | {
        "model": "scripted" if args.scripted else args.model,
        "requests": args.requests,
        **{f"{way}_{kind}_ms": round(value, 4) for way in WAYS for kind, value in ms[way].items() if value},
        "recorder_share": round((ms["recorder"]["rest"] - off["rest"]) / off["step"], 4),
        "recorder_hooks_share": round(ms["recorder"]["hooks"] / off["step"], 4),
        "undo_hooks_share": round((ms["recorder+undo"]["hooks"] - ms["recorder"]["hooks"]) / off["step"], 4),
        "lab_share": round((lab["rest"] - off["rest"] + lab["sent"]) / off["step"], 4),
    }
    for name, value in result.items():
        print(f"{name:>24}  {value}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
