"""The records: all that anyone outside the engine ever sees. Each says what changed, none is a state.

A run is one stream of records, in the order in which things happened:

    Header  Input*  (Scheduled Executed Updated Input*)*        with a Keyframe now and then

`view.py` folds them into an `EngineView`, and `widgets/src/fold.ts` folds the same records the same way in the browser. A
trace file, a live engine and a simulation are all this stream, so a widget cannot tell them apart.

On the wire and on disk each record is a msgpack map with a "t" key for its kind; unknown keys are skipped, so that a newer
engine can add fields. Steps count from 0. Times are seconds; `at` counts from the start of the run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nbengine.kv_cache.ops import BlockOp
from nbengine.observe.tables import html_table, text_table
from nbengine.plan import BatchTensors
from nbengine.scheduler.decision import Decision

SCHEMA_VERSION = 1
FINISHED_KEPT = 1000  # a view forgets the oldest finished requests beyond this many


class Record(msgspec.Struct, kw_only=True, tag_field="t", omit_defaults=True):
    """Base of all records."""


class Header(Record, tag="header", kw_only=True, omit_defaults=False):
    """The engine and its limits: the first record of a run."""

    version: int = SCHEMA_VERSION
    engine: str = "nbengine"
    model: str
    num_blocks: int  # block 0 (reserved) included
    block_size: int
    max_num_seqs: int
    token_budget: int
    max_model_len: int
    policy: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    created: str  # ISO 8601, UTC
    config: dict[str, Any] = {}  # every option, for people


class Texts(Record, tag="texts", kw_only=True):
    """The text of token ids not told before, so that a viewer needs no tokenizer. Bytes that are no whole character
    stand as \\xNN."""

    token_ids: list[int]
    texts: list[str]


# ------------------------------------------------------------------ inputs: what came from outside, before step `step`


class Added(Record, tag="added", kw_only=True):
    step: int
    at: float
    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    priority: int = 0
    prompt: str | None = None
    params: dict[str, Any] = {}  # sampling parameters that differ from the defaults
    waiting: list[str] = []  # the queue after the add, next first; empty: the request went to its end


class Aborted(Record, tag="aborted", kw_only=True):
    """A request ended from outside. It leaves its queue; running and waiting are told only if more than that changed."""

    step: int
    at: float
    request_id: str
    reason: str = "abort"  # abort, or stop: the front found a stop string
    block_ops: list[BlockOp] = []
    waiting: list[str] | None = None
    running: list[str] | None = None


class Changed(Record, tag="changed", kw_only=True):
    """A hand on the controls: an option changed, a request preempted by hand, the prefix cache dropped, a token edited.

    what, and the keys of values:
    "option"              the options' new values, by name
    "priority"            priority
    "preempt"             preempted: [request ids]
    "reset_prefix_cache"  done; preempted: [request ids], if running ones were preempted for it
    "edit_token"          token_id, before: the request's sampled token of the step under way was replaced
    "pause"               reason
    "rewind"              from_step, to_step: later steps are undone, and left out of a trace (a listener gets a Keyframe)
    "reset"               dropped: [request ids]; a Keyframe follows
    "error"               error
    """

    step: int
    at: float
    what: str
    values: dict[str, Any]
    request_id: str | None = None
    block_ops: list[BlockOp] = []
    waiting: list[str] | None = None
    running: list[str] | None = None


# ------------------------------------------------------------------------------------------------- the three phases


class Scheduled(Record, tag="scheduled", kw_only=True):
    """What `schedule()` decided.

    request_ids, tokens, computed: the batch as columns: tokens given in this step, and num_computed_tokens before them.
    running, waiting: the queues afterwards, next first; None if they did not change since they were last told.
    finished_req_ids: ended since the plan before, as the executor is told now.
    """

    step: int
    at: float
    schedule_s: float
    request_ids: list[str]
    tokens: list[int]
    computed: list[int]
    preempted: list[str] = []
    finished_req_ids: list[str] = []
    decisions: list[Decision] = []
    block_ops: list[BlockOp] = []
    running: list[str] | None = None
    waiting: list[str] | None = None
    num_common_prefix_blocks: int = 0
    free_blocks: int | None = None  # afterwards; for tables: a fold knows it anyway


class Executed(Record, tag="executed", kw_only=True):
    """What the model ran. sampled: a list a batch entry, empty for a chunk. batch: the tensors, if they were kept."""

    step: int
    at: float
    execute_s: float  # the whole phase; prepare, forward and sample are its parts
    prepare_s: float
    forward_s: float
    sample_s: float
    sampled: list[list[int]]
    batch: BatchTensors | None = None
    thread: str = "MainThread"


class Finished(msgspec.Struct, array_like=True):
    request_id: str
    reason: str
    stop_reason: int | str | None = None


class Updated(Record, tag="updated", kw_only=True):
    """What `update()` made of the tokens: appended, stopped, freed.

    violations: what check_invariants() found, empty when the books add up; None if it was not run.
    """

    step: int
    at: float
    update_s: float
    request_ids: list[str]
    tokens: list[list[int]]
    finished: list[Finished] = []
    block_ops: list[BlockOp] = []
    running: list[str] | None = None
    prefix: list[int] = []  # requests, queries, hits; the same three for preempted requests: of this step
    violations: list[str] | None = None


class Failed(Record, tag="failed", kw_only=True):
    """A phase raised. The engine stands before that phase's step again."""

    step: int
    at: float
    phase: str
    error: str  # the exception's type and message
    traceback: str = ""


# ------------------------------------------------------------------------------------------------------- whole state


class RequestState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request, whole. `token_ids` is prompt + output.

    added_at, first_token_at, last_token_at: seconds that the engine's phases had taken by then (see Keyframe.busy_s), so
    that TTFT and ITL do not count the time in which a person looks at a stopped engine.
    """

    request_id: str
    status: str  # waiting | running | preempted | finished
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    max_tokens: int
    block_ids: list[int]
    priority: int = 0
    prompt: str | None = None
    params: dict[str, Any] = {}
    num_cached_tokens: int = 0  # prefix hit of the last admission
    num_preemptions: int = 0
    scheduled: int = 0  # tokens in the step under way or last done
    added_at: float = 0.0
    first_token_at: float | None = None
    last_token_at: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Keyframe(Record, tag="keyframe", kw_only=True):
    """The whole view at one moment, so that a late viewer, or a seek, need not fold from the start.

    phase: the next one to run. owners[b]: the requests that hold block b. hashes[b]: short hash, None if not cached.
    free_queue: block ids, next to be taken first. options: the scheduler options that were changed since the header.
    busy_s: how long all phases have taken so far.
    """

    step: int
    at: float
    phase: str
    requests: list[RequestState]
    running: list[str]
    waiting: list[str]
    finished: list[str]
    owners: list[list[str]]
    hashes: list[str | None]
    free_queue: list[int]
    counters: dict[str, float] = {}
    options: dict[str, Any] | None = None  # None in files that do not tell them
    busy_s: float = 0.0


Input = Added | Aborted | Changed
AnyRecord = Header | Texts | Added | Aborted | Changed | Scheduled | Executed | Updated | Failed | Keyframe

encoder = msgspec.msgpack.Encoder()
decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


class StepRecord(msgspec.Struct, kw_only=True):
    """One step: the inputs that came before it (or between its phases) and its phases as far as they have run.

    policy: the scheduling policy that it was planned under.
    """

    step: int
    policy: str = ""
    inputs: list[Input] = []
    scheduled: Scheduled | None = None
    executed: Executed | None = None
    updated: Updated | None = None
    failed: Failed | None = None

    def facts(self) -> dict[str, Any]:
        """The step in numbers: requests and tokens by kind, what began and ended, milliseconds by phase, blocks left."""
        plan, run, done = self.scheduled, self.executed, self.updated
        verdicts = {d.request_id: str(d.verdict) for d in plan.decisions} if plan else {}
        batch = list(zip(plan.request_ids, plan.tokens)) if plan else []
        decodes = [tokens for request_id, tokens in batch if verdicts.get(request_id, "decode") == "decode"]
        prefills = [tokens for request_id, tokens in batch if verdicts.get(request_id, "decode") != "decode"]
        return {
            "step": self.step,
            "prefill_requests": len(prefills),
            "prefill_tokens": sum(prefills),
            "decode_requests": len(decodes),
            "decode_tokens": sum(decodes),
            "new": list(verdicts.values()).count("admitted"),
            "resumed": list(verdicts.values()).count("resumed"),
            "preempted": len(plan.preempted) if plan else 0,
            "finished": len(done.finished) if done else 0,
            "output_tokens": sum(map(len, done.tokens)) if done else 0,
            "schedule_ms": plan.schedule_s * 1e3 if plan else None,
            "prepare_ms": run.prepare_s * 1e3 if run else None,
            "forward_ms": run.forward_s * 1e3 if run else None,
            "sample_ms": run.sample_s * 1e3 if run else None,
            "execute_ms": run.execute_s * 1e3 if run else None,
            "update_ms": done.update_s * 1e3 if done else None,
            "free_blocks": plan.free_blocks if plan else None,
        }

    def _lines(self) -> list[list[object]]:
        facts = self.facts()
        lines: list[list[object]] = [
            ["input", f"{type(i).__name__.lower()} {i.request_id or ''}".strip()] for i in self.inputs
        ]
        if self.scheduled:
            given = [f"{who} {n}" for who, n in zip(self.scheduled.request_ids, self.scheduled.tokens)]
            lines.append(["schedule", f"{facts['schedule_ms']:.3f} ms: " + (", ".join(given) or "nothing to run")])
            lines += [["preempted", ", ".join(self.scheduled.preempted)]] if self.scheduled.preempted else []
        if self.executed:
            sampled = sum(map(len, self.executed.sampled))
            lines.append(["execute", f"{facts['execute_ms']:.3f} ms: {sampled} sampled"])
        if self.updated:
            ended = [f"{end.request_id} ({end.reason})" for end in self.updated.finished]
            lines.append(
                ["update", f"{facts['update_ms']:.3f} ms: " + ("finished " + ", ".join(ended) if ended else "none finished")]
            )
        if self.failed:
            lines.append(["failed", f"{self.failed.phase}: {self.failed.error}"])
        return lines

    def __str__(self) -> str:
        return f"step {self.step}\n" + text_table(("", ""), self._lines(), "  ")

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": html_table(f"step {self.step}", ("phase", "what"), self._lines())}
