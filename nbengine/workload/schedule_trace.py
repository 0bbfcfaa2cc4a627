"""`nbengine schedule-trace`: run workload files through the scheduler alone and write down what it decides.

No model: a stand-in samples tokens that depend on the request's id and the position only. Workloads and traces have the
format of the conformance traces (tests/conformance/data/README.md), so a trace can be compared with vLLM's own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from nbengine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from nbengine.errors import ConfigError, DuplicateRequestError, InvalidParameterError
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreOutputs, EngineCoreRequest
from nbengine.sampling_params import RepetitionDetection, SamplingParams
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler
from nbengine.workload.format import Json, Options, read_workloads, unknown_keys

DEFAULTS: Json = msgspec.structs.asdict(Options())
_UNSUPPORTED = ("async_scheduling", "num_speculative_tokens")
_STALL_STEPS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="workloads: one JSON object, a list, or JSON lines, or .gz")
    parser.add_argument("-o", "--output", metavar="OUT", help="where traces go, gzipped if it ends in .gz (default: stdout)")


def run(args: argparse.Namespace) -> int:
    """The command. Returns its exit status: 2 for a file that is no workload."""
    try:
        workloads = [workload for file in args.files for workload in read_workloads(Path(file))]
    except (OSError, ValueError) as error:
        sys.stderr.write(f"schedule-trace: {error}\n")
        return 2
    for name in sorted({name for workload in workloads for name in unknown_keys(workload)}):
        sys.stderr.write(f"schedule-trace: {name!r} is no key of this format and is passed over.\n")
    lines = (json.dumps(run_workload(workload), ensure_ascii=False) + "\n" for workload in workloads)
    if args.output is None:
        sys.stdout.writelines(lines)
        return 0
    opener = gzip.open if args.output.endswith(".gz") else open
    with opener(args.output, "wt", encoding="utf-8") as out:
        out.writelines(lines)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run_workload(workload: Json) -> Json:
    """The trace of one workload."""
    trace: Json = {"name": workload.get("name", ""), "end": "done"}
    try:
        driver = _Driver(workload)
    except ConfigError as error:
        return trace | {"end": "config_error", "error": str(error), "steps": []}
    trace["end"], steps = driver.run()
    trace |= driver.extras
    if left := [request.request_id for request in driver.scheduler.requests.values()]:
        trace["left"] = left
    return trace | {"steps": steps}


def make_config(options: Json) -> EngineConfig:
    """A workload's options as an EngineConfig. Raises ConfigError."""
    for name in _UNSUPPORTED:
        if options[name]:
            raise ConfigError(f"{name} is not supported by this scheduler: leave it off.")
    for name in ("block_size", "num_blocks", "vocab_size", "prefill_schedule_interval"):
        if options[name] < 1:
            raise ConfigError(f"{name} must be at least 1, got {options[name]}.")
    names = set(SchedulerConfig.__struct_fields__)
    limits = SchedulerConfig(**{name: value for name, value in options.items() if name in names})
    if limits.max_num_partial_prefills > 1 and limits.long_prefill_token_threshold == 0:
        limits.long_prefill_token_threshold = int(limits.max_model_len * 0.04)
    limits.check()
    return EngineConfig(
        model=ModelConfig(max_model_len=limits.max_model_len),
        cache=CacheConfig(
            block_size=options["block_size"],
            enable_prefix_caching=options["enable_prefix_caching"],
            num_blocks=options["num_blocks"],
        ),
        scheduler=limits,
    )


class Sampler:
    """Stands in for the model: token i of request r is scripted, or eos, or the CRC-32 of "r:i" modulo the vocabulary."""

    def __init__(self, vocab_size: int, eos_token_id: int) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        self._scripts: dict[str, tuple[list[int], int | None]] = {}

    def script(self, request_id: str, outputs: list[int], eos_at: int | None) -> None:
        """Fix the first tokens of a request, or the position of its end-of-sequence token."""
        self._scripts[request_id] = (outputs, eos_at)

    def token(self, request_id: str, index: int) -> int:
        outputs, eos_at = self._scripts.get(request_id, ([], None))
        if index < len(outputs):
            return outputs[index]
        if index == eos_at:
            return self.eos_token_id
        return crc32(f"{request_id}:{index}".encode()) % self.vocab_size

    def execute(self, plan: SchedulerOutput, scheduler: Scheduler) -> ModelRunnerOutput:
        """One token for each request of the plan that it carries to its end."""
        requests = [scheduler.requests[request_id] for request_id in plan.num_scheduled_tokens]
        return ModelRunnerOutput(
            request_ids=list(plan.num_scheduled_tokens),
            sampled_token_ids=[
                [] if request.is_prefill_chunk else [self.token(request.request_id, request.num_output_tokens)]
                for request in requests
            ],
        )


class _Driver:
    """The loop around the scheduler, and the record of each step."""

    def __init__(self, workload: Json) -> None:
        options = DEFAULTS | workload.get("config", {})
        self.scheduler = Scheduler(make_config(options))
        self.sampler = Sampler(options["vocab_size"], options["eos_token_id"])
        self.interval = options["prefill_schedule_interval"]
        self.max_steps = workload.get("max_steps", 2000)
        self.events: dict[int, list[Json]] = {}
        for event in workload.get("events", []):
            self.events.setdefault(event.get("step", 0), []).append(event)
        self.last_event = max(self.events, default=-1)
        self.num_added = 0
        self.extras: Json = {}

    def run(self) -> tuple[str, list[Json]]:
        """How it ended, and a record for each step in which something happened."""
        steps: list[Json] = []
        idle = 0
        for step in range(self.max_steps):
            if step > self.last_event and not self.scheduler.has_requests_or_finished_to_announce():
                return "done", steps
            record: Json = {"step": step}
            try:
                self._step(step, record)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.extras = {
                    "error": f"{type(error).__name__}: {error}",
                    "where": f"{Path(where.filename).name}:{where.lineno}",
                    "partial": record,
                }
                return "exception", steps
            if len(record) > 1:
                steps.append(record)
            moved = bool(record.get("scheduled") or record.get("tokens"))
            idle = 0 if moved or step <= self.last_event or not self.scheduler.has_unfinished_requests() else idle + 1
            if idle == _STALL_STEPS:
                return "stalled", steps
        return "max_steps", steps

    def _step(self, step: int, record: Json) -> None:
        events = self.events.get(step, [])
        for event in events:
            if event.get("when") != "mid":
                self._apply(event, record)
        scheduler = self.scheduler
        has_work = scheduler.has_requests_or_finished_to_announce()
        if has_work:
            plan = scheduler.schedule(throttle_prefills=step % self.interval != 0)
            record |= self._describe_plan(plan)
            output = self.sampler.execute(plan, scheduler)
        for event in events:
            if event.get("when") == "mid":
                self._apply(event, record)
        if has_work:
            record |= _describe_outputs(scheduler.update_from_output(plan, output), record)
        if len(record) > 1:
            record |= self._describe_pool()

    # ---------------------------------------------------------------------------------------------------- events

    def _apply(self, event: Json, record: Json) -> None:
        scheduler = self.scheduler
        if "add" in event:
            self._add(event["add"], record)
        if "abort" in event:
            aborted = record.setdefault("aborted", [])
            for request_id in event["abort"]:
                aborted += scheduler.finish_requests([request_id])
        if event.get("reset_prefix_cache"):
            by_force = bool(event.get("reset_running_requests"))
            if by_force and scheduler.running:
                victims = [request.request_id for request in reversed(scheduler.running)]
                record.setdefault("reset_preempted", []).extend(victims)
            record.setdefault("reset", []).append(scheduler.reset_prefix_cache(reset_running_requests=by_force))
        if "pause" in event:
            scheduler.pause_state = event["pause"]

    def _add(self, spec: Json, record: Json) -> None:
        ordinal, self.num_added = self.num_added, self.num_added + 1
        request_id, refusal = spec["request_id"], None
        try:
            request = Request(self._core_request(spec, ordinal), self.scheduler.max_model_len)
            refusal = self._refusal(request)
            if refusal is None:
                self.scheduler.add_request(request)
        except InvalidParameterError:
            refusal = "invalid_parameter"
        except DuplicateRequestError:
            refusal = "duplicate_id"
        if refusal is None:
            self.sampler.script(request_id, spec.get("outputs") or [], spec.get("eos_at"))
        else:
            record.setdefault("rejected", []).append({"id": request_id, "error": refusal})

    def _refusal(self, request: Request) -> str | None:
        """What the front would refuse before the scheduler sees it, and what the scheduler refuses."""
        if request.num_tokens == 0:
            return "empty_prompt"
        if request.num_tokens >= self.scheduler.max_model_len:
            return "prompt_too_long"
        return None if self.scheduler.refusal(request) is None else "never_fits"

    def _core_request(self, spec: Json, ordinal: int) -> EngineCoreRequest:
        repetition = spec.get("repetition_detection")
        lora = spec.get("lora", 0)
        arrival_time = spec.get("arrival_time")
        return EngineCoreRequest(
            request_id=spec["request_id"],
            prompt_token_ids=spec["prompt_token_ids"],
            sampling_params=SamplingParams(
                max_tokens=spec.get("max_tokens"),
                min_tokens=spec.get("min_tokens", 0),
                stop_token_ids=spec.get("stop_token_ids") or [],
                ignore_eos=spec.get("ignore_eos", False),
                skip_reading_prefix_cache=spec.get("skip_reading_prefix_cache", False),
                repetition_detection=RepetitionDetection(**repetition) if repetition else None,
            ),
            arrival_time=float(ordinal) if arrival_time is None else arrival_time,
            eos_token_id=self.sampler.eos_token_id,
            priority=spec.get("priority", 0),
            cache_salt=spec.get("cache_salt"),
            lora_id=lora,
            lora_name=f"lora{lora}" if lora else None,
        )

    # --------------------------------------------------------------------------------------------------- records

    def _describe_plan(self, plan: SchedulerOutput) -> Json:
        scheduler, pool = self.scheduler, self.scheduler.kv.pool
        computed, blocks = {}, {}
        continuing = plan.scheduled_cached_reqs
        for request_id, count, added in zip(
            continuing.request_ids, continuing.num_computed_tokens, continuing.new_block_ids
        ):
            computed[request_id] = count
            blocks[request_id] = added
        for new in (*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs):
            computed[new.request_id] = new.num_computed_tokens
            blocks[new.request_id] = new.block_ids
        record: Json = {
            "scheduled": _pairs(plan.num_scheduled_tokens.items()),
            "new": [new.request_id for new in plan.scheduled_new_reqs],
            "resumed": [resumed.request_id for resumed in plan.scheduled_resumed_reqs],
            "preempted": plan.preempted_req_ids,
            "computed": [[request_id, computed[request_id]] for request_id in plan.num_scheduled_tokens],
            "blocks": [[request_id, blocks[request_id]] for request_id in plan.num_scheduled_tokens if blocks[request_id]],
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
        }
        if scheduler.skipped:
            record["skipped"] = [request.request_id for request in scheduler.skipped]
        return record | {
            "free_blocks": pool.num_free,
            "common_prefix_blocks": plan.num_common_prefix_blocks,
            "flushed": sorted(plan.finished_req_ids),
        }

    def _describe_pool(self) -> Json:
        pool = self.scheduler.kv.pool
        return {
            "free_end": pool.num_free,
            "free_crc": crc32(",".join(map(str, pool.free)).encode()),
            "cached_blocks": len(pool.index),
        }


def _describe_outputs(outputs: EngineCoreOutputs, record: Json) -> Json:
    assert outputs.stats is not None
    stats = outputs.stats.prefix_cache
    described: Json = {
        "prefix": [
            stats.requests,
            stats.queries,
            stats.hits,
            stats.preempted_requests,
            stats.preempted_queries,
            stats.preempted_hits,
            int(stats.reset),
        ],
        "tokens": [[output.request_id, output.new_token_ids] for output in outputs.outputs],
        "finished": [
            [output.request_id, str(output.finish_reason), output.stop_reason]
            for output in outputs.outputs
            if output.finish_reason is not None
        ],
    }
    first = [(o.request_id, o.num_cached_tokens) for o in outputs.outputs if o.num_cached_tokens is not None]
    if first:
        described["cached_tokens"] = _pairs(first)
    return described


def _pairs(items: Iterable[tuple[str, Any]]) -> list[list[Any]]:
    return [list(item) for item in items]
