"""Requests that arrive over time: read from a public trace, and run by the engine's clock.

    arrivals = read_arrivals("AzureLLMInferenceTrace_conv.csv")[:100]
    outputs = replay(LLM("simulated", executor_cls=SimulatedExecutor), arrivals)
    outputs[0].metrics.time_to_first_token

On a simulation's clock an hour of arrivals is over in seconds; on the wall's, a real model is given them as they come.
"""

from __future__ import annotations

import csv
import random
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from nbengine.engine.input_processor import ParsedPrompt
from nbengine.errors import ConfigError
from nbengine.llm import LLM
from nbengine.outputs import RequestOutput
from nbengine.sampling_params import RequestOutputKind, SamplingParams

_VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class Arrival(msgspec.Struct, frozen=True):
    """A request of which only the lengths are known. at: seconds from the start."""

    at: float
    num_prompt_tokens: int
    max_tokens: int


def read_arrivals(path: str | Path) -> list[Arrival]:
    """The rows of a CSV file in the format of Azure's LLM inference traces, or of Vidur's. Raises ConfigError for another.

    Rows without a prompt or an answer are left out.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = next((known for known in (_AZURE, _VIDUR) if set(known) <= set(reader.fieldnames or ())), None)
        if columns is None:
            raise ConfigError(f"{path} has the columns {reader.fieldnames}; wanted are {_AZURE} or {_VIDUR}.")
        rows = [[row[name] for name in columns] for row in reader]
    moments = [_seconds(row[0]) for row in rows]
    start = min(moments, default=0.0)
    arrivals = [Arrival(at - start, int(prompt), int(made)) for at, (_, prompt, made) in zip(moments, rows)]
    return [arrival for arrival in arrivals if arrival.num_prompt_tokens > 0 and arrival.max_tokens > 0]


def _seconds(moment: str) -> float:
    """A number of seconds, or a time of day with any number of digits behind the second."""
    try:
        return float(moment)
    except ValueError:
        whole, _, fraction = moment.removesuffix("+00:00").partition(".")
        return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


def replay(llm: LLM, arrivals: Iterable[Arrival]) -> list[RequestOutput]:
    """Give the engine each request when it arrives, and run until all are done. Returns their outputs, in order of arrival.

    Prompts are random token ids, the same ones each time, no two alike; every answer is as long as its max_tokens.
    """
    engine = llm.llm_engine
    clock, start = engine.clock, engine.clock.now()
    vocab_size = engine.limits.vocab_size or 1000
    waiting = deque(sorted(arrivals, key=lambda arrival: arrival.at))
    request_ids: list[str] = []
    while waiting or engine.has_work():
        while waiting and start + waiting[0].at <= clock.now():
            arrival = waiting.popleft()
            prompt = random.Random(len(request_ids)).choices(range(vocab_size), k=arrival.num_prompt_tokens)
            params = SamplingParams(temperature=0, max_tokens=arrival.max_tokens, ignore_eos=True)
            params.output_kind = RequestOutputKind.FINAL_ONLY
            name = engine.new_request_id()
            request_ids.append(engine.add_request(name, ParsedPrompt(prompt), params, arrival_time=start + arrival.at))
        if engine.has_work():
            engine.advance()
        elif waiting:
            clock.wait_until(start + waiting[0].at)
    outputs = {output.request_id: output for output in engine.take_outputs(request_ids)}
    return [outputs[request_id] for request_id in request_ids]
