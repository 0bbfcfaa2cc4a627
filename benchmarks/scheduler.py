"""What the scheduler alone costs in a step of steady decode, and what adding a request costs. No model.

    python benchmarks/scheduler.py --running 16 64 256 1024 [--json]

512-token prompts, block size 16, prefix caching on, no observer: the set-up of vLLM 0.25.1's figures below. Medians.
"""

from __future__ import annotations

import argparse
import json
import random
from statistics import median
from time import perf_counter

from compare import stamp

from nbengine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreRequest
from nbengine.sampling_params import SamplingParams
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler

PROMPT_TOKENS = 512
BLOCK_SIZE = 16
VOCABULARY = 49_152
VLLM_US = {16: (106, 49), 64: (380, 169), 256: (1558, 703), 1024: (6790, 3483)}  # schedule, update: on another machine
VLLM_ADD_US = 225


def make_scheduler(running: int, num_blocks: int) -> Scheduler:
    return Scheduler(
        EngineConfig(
            model=ModelConfig(max_model_len=8192),
            cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks),
            scheduler=SchedulerConfig(max_num_seqs=running, max_num_batched_tokens=max(8192, running), max_model_len=8192),
        )
    )


def make_request(request_id: str, length: int, source: random.Random) -> Request:
    core = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=[source.randrange(VOCABULARY) for _ in range(length)],
        sampling_params=SamplingParams(max_tokens=4096, ignore_eos=True),
        arrival_time=0.0,
    )
    return Request(core, 8192)


def answer(plan: SchedulerOutput, scheduler: Scheduler) -> ModelRunnerOutput:
    """A token for every request of the plan that reached its end."""
    ids = list(plan.num_scheduled_tokens)
    chunks = [scheduler.requests[request_id].is_prefill_chunk for request_id in ids]
    return ModelRunnerOutput(request_ids=ids, sampled_token_ids=[[] if chunk else [7] for chunk in chunks])


def decode(running: int, steps: int, spare_blocks: int = 0) -> dict[str, float]:
    """Medians of `steps` steps with every request decoding, in microseconds."""
    per_request = (PROMPT_TOKENS + steps) // BLOCK_SIZE + 4
    scheduler = make_scheduler(running, running * per_request + spare_blocks + 1)
    source = random.Random(0)
    for number in range(running):
        scheduler.add_request(make_request(f"r{number}", PROMPT_TOKENS, source))
    while True:
        plan = scheduler.schedule()
        scheduler.update_from_output(plan, answer(plan, scheduler))
        if len(scheduler.running) == running and not any(r.is_prefill_chunk for r in scheduler.running):
            break
    schedule_s, update_s = [], []
    for _ in range(steps):
        start = perf_counter()
        plan = scheduler.schedule()
        planned = perf_counter()
        output = answer(plan, scheduler)
        sampled = perf_counter()
        scheduler.update_from_output(plan, output)
        update_s.append(perf_counter() - sampled)
        schedule_s.append(planned - start)
    assert len(plan.num_scheduled_tokens) == running
    return {
        "running": running,
        "schedule_us": round(median(schedule_s) * 1e6, 1),
        "update_us": round(median(update_s) * 1e6, 1),
    }


def add_request(length: int, repeats: int) -> float:
    """Median cost of adding one request of `length` tokens, block hashes included, in microseconds."""
    scheduler = make_scheduler(4, repeats * (length // BLOCK_SIZE + 1) + 1)
    source = random.Random(1)
    params = SamplingParams(max_tokens=16)
    seconds = []
    for number in range(repeats):
        prompt = [source.randrange(VOCABULARY) for _ in range(length)]
        core = EngineCoreRequest(request_id=f"r{number}", prompt_token_ids=prompt, sampling_params=params, arrival_time=0.0)
        start = perf_counter()
        scheduler.add_request(Request(core, 8192))
        seconds.append(perf_counter() - start)
    return round(median(seconds) * 1e6, 1)


def admit_cached(length: int, repeats: int) -> float:
    """Median cost of the `schedule` that admits one prompt of `length` tokens whose prefix is cached, in microseconds."""
    scheduler = make_scheduler(4, 4 * (length // BLOCK_SIZE + 2) + 1)
    seconds = []
    for number in range(repeats):
        scheduler.add_request(make_request(f"r{number}", length, random.Random(2)))
        start = perf_counter()
        plan = scheduler.schedule()
        seconds.append(perf_counter() - start)
        scheduler.update_from_output(plan, answer(plan, scheduler))
        scheduler.finish_requests([f"r{number}"])
        scheduler.schedule()
    return round(median(seconds[1:]) * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[16, 64, 256, 1024], help="requests that decode")
    parser.add_argument("--steps", type=int, default=200, help="steps to take the median of")
    parser.add_argument("--spare-blocks", type=int, default=0, help="free blocks beside those that the requests need")
    parser.add_argument("--json", action="store_true", help="only the last line, one JSON object")
    args = parser.parse_args()
    results = stamp() | {
        "decode": [decode(running, args.steps, args.spare_blocks) for running in args.running],
        "add_request_2000_us": add_request(2000, 50),
        "admit_cached_2000_us": admit_cached(2000, 50),
    }
    if not args.json:
        print("running  schedule us  update us  vLLM 0.25.1's, elsewhere")
        for row in results["decode"]:
            peer = VLLM_US.get(row["running"], ("-", "-"))
            print(f"{row['running']:7} {row['schedule_us']:12} {row['update_us']:10}  {peer[0]} + {peer[1]}")
        print(f"adding 2,000 tokens: {results['add_request_2000_us']} us (vLLM: {VLLM_ADD_US})")
        print(f"admitting 2,000 cached tokens: {results['admit_cached_2000_us']} us (vLLM: 155)")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
