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
from nbengine.plan import BatchTensors
from nbengine.scheduler.decision import Decision

SCHEMA_VERSION = 1


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
    waiting: list[str] = []  # the queue after the add, next first


class Aborted(Record, tag="aborted", kw_only=True):
    step: int
    at: float
    request_id: str
    reason: str = "abort"  # abort, or stop: the front found a stop string
    block_ops: list[BlockOp] = []
    waiting: list[str] | None = None
    running: list[str] | None = None


class Changed(Record, tag="changed", kw_only=True):
    """A hand on the controls: an option changed, a request preempted by hand, the prefix cache dropped, a token edited.

    what: "option" | "priority" | "preempt" | "reset_prefix_cache" | "edit_token" | "pause" | "error"
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
    """

    step: int
    at: float
    schedule_s: float
    request_ids: list[str]
    tokens: list[int]
    computed: list[int]
    preempted: list[str] = []
    decisions: list[Decision] = []
    block_ops: list[BlockOp] = []
    running: list[str] | None = None
    waiting: list[str] | None = None
    num_common_prefix_blocks: int = 0


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
    """One request, whole. `token_ids` is prompt + output."""

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
    free_queue: block ids, next to be taken first.
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


Input = Added | Aborted | Changed
AnyRecord = Header | Texts | Added | Aborted | Changed | Scheduled | Executed | Updated | Failed | Keyframe

encoder = msgspec.msgpack.Encoder()
decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


class StepRecord(msgspec.Struct, kw_only=True):
    """One step: the inputs that came before it and its phases as far as they have run."""

    step: int
    inputs: list[Input] = []
    scheduled: Scheduled | None = None
    executed: Executed | None = None
    updated: Updated | None = None
    failed: Failed | None = None
