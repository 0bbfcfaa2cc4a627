"""Continuous batching: in every step, which requests compute how many tokens, in which KV blocks.

`schedule()` plans a step and `update_from_output()` takes its result. Between the two the model runs, elsewhere. The rules
are vLLM 0.25.1's v1 scheduler's: running requests first, in the order of their admission; then the waiting ones, until
one does not fit. When a running request finds no block, another loses its blocks and starts over later.

To change a rule, subclass: `choose_victim` says who loses its blocks, `make_queue` or `waiting_key` in which order
requests are admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from time import monotonic
from typing import Any, Literal

from nbengine.config import EngineConfig
from nbengine.errors import DuplicateRequestError, InvalidRequestError
from nbengine.kv_cache.manager import KVCacheManager
from nbengine.plan import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput
from nbengine.protocol import EngineCoreOutput, EngineCoreOutputs, FinishReason, PrefixCacheStats, SchedulerStats
from nbengine.scheduler import snapshot as snapshots
from nbengine.scheduler.decision import Decision, DecisionLog, Verdict
from nbengine.scheduler.request import Request, RequestStatus
from nbengine.scheduler.request_queue import FCFSQueue, KeyedQueue, RequestQueue
from nbengine.scheduler.rules import AdmissionRule, LoraSlots
from nbengine.scheduler.stopping import stop_of

PauseState = Literal["none", "new", "all"]  # run; admit nobody; compute nothing

_RUNNING = RequestStatus.RUNNING


@dataclass(slots=True)
class Batch:
    """The plan of a step while it is being made."""

    budget: int  # tokens left
    log: DecisionLog | None  # None when nobody looks
    tokens: dict[str, int] = field(default_factory=dict)  # request -> tokens in this step, in batch order
    computed: list[int] = field(default_factory=list)  # of the running requests among them, before this step
    added_blocks: dict[str, list[int]] = field(default_factory=dict)  # running request -> blocks added to its table
    preempted: list[str] = field(default_factory=list)
    new: list[NewRequestData] = field(default_factory=list)
    resumed: list[NewRequestData] = field(default_factory=list)

    def take_back(self, request_id: str) -> int:
        """Remove a running request that may have its tokens already; how many it had."""
        if request_id not in self.tokens:
            return 0
        del self.computed[list(self.tokens).index(request_id)]
        self.added_blocks.pop(request_id, None)
        return self.tokens.pop(request_id)

    def continuing(self) -> CachedRequestData:
        """The running requests that got tokens, as columns; call it before any is admitted."""
        ids = list(self.tokens)
        added: list[list[int] | None] = [None] * len(ids)
        if self.added_blocks:
            added = [self.added_blocks.get(request_id) for request_id in ids]
        return CachedRequestData(ids, added, self.computed)


class Scheduler:
    """The queues, the KV blocks and the rules that move requests between them. Owned by one thread.

    num_blocks: KV blocks, null block included; default: config.cache.num_blocks.
    decisions: the observer's slot. Make it a list and `schedule` appends one Decision for every live request.
    prefix_stats counts every prefix look-up since the last update, as vLLM does, so that a refused head counts again
    in every step; admissions counts once an admission, and never starts over.
    """

    def __init__(self, config: EngineConfig, num_blocks: int | None = None) -> None:
        self.config = config
        self.kv = KVCacheManager(config.cache, config.cache.num_blocks if num_blocks is None else num_blocks)
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting = self.make_queue()
        self.skipped = self.make_queue()  # passed over by a rule in an earlier step
        limits = config.scheduler
        self.rules: list[AdmissionRule] = [LoraSlots(limits.max_loras)] if limits.max_loras else []
        self.pause_state: PauseState = "none"
        self.step = 0
        self.num_preemptions = 0
        self.preempted_since_update = 0
        self.prefix_stats = PrefixCacheStats()
        self.admissions = PrefixCacheStats()
        self.decisions: list[Decision] | None = None
        self.in_flight: dict[str, int] = {}  # tokens of the plan that has not come back yet
        self.finished_req_ids: dict[str, None] = {}  # ended, to be announced by the next plan; in order
        self.has_backlog = False  # the last admission pass that let prefills in left requests waiting

    # ------------------------------------------------------------------------------------ the rules to override

    def choose_victim(self) -> Request:
        """The running request that loses its blocks when one finds none: the last admitted, or the least important."""
        if self.config.scheduler.policy == "priority":
            return max(self.running, key=lambda request: (request.priority, request.arrival_time))
        return self.running[-1]

    def waiting_key(self, request: Request) -> Any:
        """The priority policy's order of admission: the smallest key first. Request ids compare as strings."""
        return (request.priority, request.arrival_time, request.request_id)

    def make_queue(self) -> RequestQueue:
        """An empty waiting queue."""
        return KeyedQueue(self.waiting_key) if self.config.scheduler.policy == "priority" else FCFSQueue()

    # ------------------------------------------------------------------------------------------------- the step

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Plan the next step: tokens for running requests, then admissions.

        On return the plan's tokens count as computed. throttle_prefills: data parallel only: this rank must not begin
        prefills in this step, lest all others wait for it.
        """
        budget = 0 if self.pause_state == "all" else self.config.scheduler.token_budget
        batch = Batch(budget, None if self.decisions is None else DecisionLog(self.decisions))
        self.in_flight = batch.tokens
        deferring = throttle_prefills and self._may_defer_prefills()
        self._schedule_running(batch, deferring)
        continuing = batch.continuing()
        if batch.preempted:
            if batch.log is not None:
                batch.log.note_rest(self._waiting_ids(), Verdict.ADMISSION_OFF, batch.preempted[0])
        elif self.pause_state != "none":
            if batch.log is not None:
                batch.log.note_rest(self.requests, Verdict.PAUSED)
        else:
            self._admit_waiting(batch, deferring)
            self.has_backlog = self.has_backlog if deferring else len(self.waiting) > 0
        plan = SchedulerOutput(
            step=self.step,
            scheduled_new_reqs=batch.new,
            scheduled_resumed_reqs=batch.resumed,
            scheduled_cached_reqs=continuing,
            num_scheduled_tokens=batch.tokens,
            total_num_scheduled_tokens=sum(batch.tokens.values()),
            preempted_req_ids=batch.preempted,
            finished_req_ids=list(self.finished_req_ids),
            num_common_prefix_blocks=self._num_common_prefix_blocks(),
        )
        self.finished_req_ids = {}
        self.step += 1
        return plan

    def _schedule_running(self, batch: Batch, deferring: bool) -> None:
        """Tokens for running requests, in order, while the budget lasts.

        This loop runs once for every request and step: it keeps what it reads in locals, makes no object for a request
        in steady decode, and asks the block pool only when a request crosses into a new block or fills one.
        """
        limits = self.config.scheduler
        running, tokens, computed_column, log = self.running, batch.tokens, batch.computed, batch.log
        chunk_limit = limits.long_prefill_token_threshold or limits.max_model_len
        last_computable = limits.max_model_len - 1
        budget = batch.budget
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            index += 1
            computed = request.num_computed_tokens
            num_tokens = len(request.token_ids)
            want = num_tokens - computed
            if want > chunk_limit:
                want = chunk_limit
            if want > budget:
                want = budget
            if want > last_computable - computed:
                want = last_computable - computed
            if want <= 0 or (deferring and request.is_prefill_chunk):
                if log is not None:
                    log.note(request.request_id, Verdict.NO_NEED if want <= 0 else Verdict.THROTTLED)
                continue
            end = computed + want
            if end > request.num_slots:
                given_back = self._make_room(request, end, batch)
                if given_back is None:
                    if log is not None:
                        log.note_rest(map(_id, running), Verdict.PASS_ENDED, request.request_id)
                    break
                budget += sum(given_back)
                index -= len(given_back)
            if end >= request.next_full:
                self.kv.index_full_blocks(request, end)
            tokens[request.request_id] = want
            computed_column.append(computed)
            budget -= want
            if log is not None:
                verdict = Verdict.PREFILL if request.is_prefill_chunk else Verdict.DECODE
                log.note(request.request_id, verdict, numbers=_tokens_numbers(want, num_tokens - end))
            request.num_computed_tokens = end
            request.is_prefill_chunk = end < num_tokens
        if log is not None and self.pause_state != "all":
            log.note_rest(map(_id, running), Verdict.BUDGET, numbers=self._budget_numbers(budget))
        batch.budget = budget

    def _make_room(self, request: Request, end: int, batch: Batch) -> list[int] | None:
        """Blocks for a running request up to token `end`, taken from others where the pool has too few.

        Returns the tokens taken back from each victim that had got some in this step; None if the request itself was
        the victim and lost its place.
        """
        given_back = []
        while not (room := self.kv.room_to_grow(request, end)).fits:
            victim = self.choose_victim()
            had = self.in_flight.get(victim.request_id, 0)
            numbers = {"needs": room.needs, "free": room.free, "computed": victim.num_computed_tokens - had}
            self.preempt(victim)
            if batch.take_back(victim.request_id):
                given_back.append(had)
            batch.preempted.append(victim.request_id)
            if batch.log is not None:
                verdict, cause = Verdict.PREEMPTED, request.request_id
                if victim is request:
                    verdict, cause = Verdict.SELF_PREEMPTED, None
                numbers["freed"] = self.kv.pool.num_free - room.free
                batch.log.withdraw(victim.request_id)
                batch.log.note(victim.request_id, verdict, cause, self.choose_victim, numbers)
            if victim is request:
                return None
        batch.added_blocks[request.request_id] = self.kv.grow(request, end)
        return given_back

    def _admit_waiting(self, batch: Batch, deferring: bool) -> None:
        """Admit waiting requests in order until one does not fit: nobody overtakes a head that lacks space.

        A head that a rule refuses (adapter slots, say) is moved aside instead, and those behind it are looked at.
        """
        limit = self.config.scheduler.max_num_seqs
        aside: list[Request] = []
        for rule in self.rules:
            rule.begin(self.requests[request_id] for request_id in batch.tokens)
        while batch.budget > 0 and (queue := self._next_queue()):
            if len(self.running) >= limit:
                if batch.log is not None:
                    numbers = {"running": len(self.running), "limit": limit}
                    batch.log.note_rest(self._waiting_ids(), Verdict.MAX_NUM_SEQS, numbers=numbers)
                break
            request = queue.peek()
            if self._passed_over(request, batch):
                aside.append(queue.pop())
            elif not self._try_admit(request, queue, batch, deferring):
                if batch.log is not None:
                    batch.log.note_rest(self._waiting_ids(), Verdict.BEHIND, request.request_id)
                break
        for request in reversed(aside):
            self.skipped.prepend(request)
        if batch.log is not None:
            batch.log.note_rest(self._waiting_ids(), Verdict.BUDGET, numbers=self._budget_numbers(batch.budget))

    def _try_admit(self, request: Request, queue: RequestQueue, batch: Batch, deferring: bool) -> bool:
        """Give the head of `queue` its tokens and blocks, if it fits. Else note why not and change nothing."""
        limits, log, request_id = self.config.scheduler, batch.log, request.request_id
        hit = self._lookup(request)
        num_tokens = len(request.token_ids)
        num_hit = len(hit) * self.kv.block_size
        if deferring and num_hit < num_tokens - 1:
            if log is not None:
                log.note(request_id, Verdict.THROTTLED)
            return False
        want = num_tokens - num_hit
        if 0 < limits.long_prefill_token_threshold < want:
            want = limits.long_prefill_token_threshold
        if want > batch.budget and not limits.enable_chunked_prefill:
            if log is not None:
                log.note(request_id, Verdict.CHUNK_TOO_BIG, numbers={"needs": want, "budget": batch.budget})
            return False
        want = min(want, batch.budget)
        watermark = int(limits.watermark * self.kv.pool.num_blocks) if self.running else 0
        if limits.scheduler_reserve_full_isl:
            room = self.kv.room_to_admit(hit, min(num_tokens, limits.max_model_len), watermark)
            if not room.fits:
                if log is not None:
                    log.note(request_id, Verdict.RESERVE, numbers=room._asdict())
                return False
        room = self.kv.room_to_admit(hit, min(num_hit + want, limits.max_model_len), watermark)
        if not room.fits:
            if log is not None:
                log.note(request_id, Verdict.NO_BLOCKS, numbers=room._asdict())
            return False
        if log is not None:
            verdict = Verdict.RESUMED if request.status is RequestStatus.PREEMPTED else Verdict.ADMITTED
            numbers = {**_tokens_numbers(want, num_tokens - num_hit - want), "hit": num_hit}
            log.note(request_id, verdict, numbers=numbers)
        self._admit(queue.pop(), hit, want, batch)
        return True

    def _admit(self, request: Request, hit: list[int], want: int, batch: Batch) -> None:
        """From the queue to the end of `running`, with its blocks and `want` tokens of this step."""
        num_hit = len(hit) * self.kv.block_size
        self.kv.admit(request, hit, num_hit + want)
        described = batch.resumed if request.status is RequestStatus.PREEMPTED else batch.new
        described.append(
            NewRequestData(
                request_id=request.request_id,
                token_ids=request.token_ids.copy(),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling_params=request.sampling_params,
                block_ids=request.block_ids.copy(),
                num_computed_tokens=num_hit,
                eos_token_id=request.eos_token_id,
                lora_id=request.lora_id,
            )
        )
        self._count_lookup(self.admissions, request, num_hit)
        batch.tokens[request.request_id] = want
        batch.budget -= want
        request.status = _RUNNING
        request.num_cached_tokens = num_hit
        request.num_computed_tokens = num_hit + want
        request.is_prefill_chunk = request.num_computed_tokens < len(request.token_ids)
        self.running.append(request)
        for rule in self.rules:
            rule.admitted(request)

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> EngineCoreOutputs:
        """Append the sampled tokens and end the requests that are done.

        Entries of requests that were aborted or preempted since `plan` was made are skipped: their tokens are lost.
        """
        outputs: list[EngineCoreOutput] = []
        any_stopped = False
        get_request = self.requests.get
        for request_id, new_ids, logprobs in zip(
            output.request_ids, output.sampled_token_ids, output.logprobs or repeat(None)
        ):
            request = get_request(request_id)
            if request is None or request.status is not _RUNNING or not new_ids:
                continue
            token_ids = request.token_ids
            entry = EngineCoreOutput(request_id=request_id, new_token_ids=new_ids, new_logprobs=logprobs)
            if len(token_ids) == request.num_prompt_tokens:
                entry.num_cached_tokens = request.num_cached_tokens
            outputs.append(entry)
            for token in new_ids:
                token_ids.append(token)
                if token in request.ending_ids or len(token_ids) >= request.max_total or request.repetition:
                    stop = stop_of(request, token, self.max_model_len)
                    if stop is not None:
                        entry.finish_reason, entry.stop_reason = stop
                        self._finish(request, *stop)
                        any_stopped = True
                        break
        if any_stopped:
            self.running = [request for request in self.running if request.status is _RUNNING]
        self.in_flight = {}
        return EngineCoreOutputs(step=plan.step, timestamp=monotonic(), outputs=outputs, stats=self._take_stats())

    # ---------------------------------------------------------------------------------------------- from outside

    def add_request(self, request: Request) -> None:
        """Put a new request into the waiting queue.

        Raises DuplicateRequestError for the id of a live request, InvalidRequestError for one that could never run.
        """
        if request.request_id in self.requests:
            raise DuplicateRequestError(f"A request {request.request_id!r} is live already: choose another id, or abort it.")
        if (refusal := self.refusal(request)) is not None:
            raise InvalidRequestError(refusal)
        self.kv.hash_full_blocks(request)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def refusal(self, request: Request) -> str | None:
        """Why a request could never be admitted, even alone; None if it can. vLLM would let it block the queue for ever."""
        length, limits = request.num_tokens, self.config.scheduler
        needed, usable = self.kv.blocks_for(length), self.kv.pool.num_usable
        if needed > usable:
            return (
                f"Request {request.request_id!r} can never fit: its {length} prompt tokens need {needed} KV blocks of "
                f"{self.kv.block_size} tokens, and the pool has {usable}. Shorten the prompt or enlarge the KV cache."
            )
        chunk = min(length, limits.long_prefill_token_threshold or length)
        if not limits.enable_chunked_prefill and chunk > limits.token_budget:
            return (
                f"Request {request.request_id!r} can never fit: with chunked prefill off its {chunk} prompt tokens must "
                f"fit one step, and the token budget is {limits.token_budget}. Raise the budget or turn chunking on."
            )
        return None

    def finish_requests(self, request_ids: str | Iterable[str], reason: FinishReason = FinishReason.ABORT) -> list[str]:
        """End requests from outside, in the given order. Returns the ids that were alive; the others are ignored."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        ended = []
        for request_id in ids:
            if (request := self.requests.get(request_id)) is not None:
                self._leave_queue(request)
                self._finish(request, reason)
                ended.append(request_id)
        return ended

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks and put it back at the front of the waiting queue. Its tokens are kept.

        May be called by hand between any two phases. If a plan with the request is in flight, what that plan computes for
        it is lost. Raises InvalidRequestError if the request is not running.
        """
        if request.status is not _RUNNING:
            raise InvalidRequestError(
                f"Only a running request can be preempted, and {request.request_id!r} is {request.status}."
            )
        self.running.remove(request)
        self.kv.forget_uncomputed(request, request.num_computed_tokens - self.in_flight.get(request.request_id, 0))
        self.kv.release(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.is_prefill_chunk = True
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.preempted_since_update += 1
        self.waiting.prepend(request)

    def set_priority(self, request: Request, priority: int) -> None:
        """Change how important a live request is, and its place in the queue with it."""
        queue = self._queue_of(request)
        if queue is not None:
            queue.remove(request)
        request.priority = priority
        if queue is not None:
            queue.add(request)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget every cached prefix. False, and nothing changes, while requests hold blocks; see `reset_refusal`.

        reset_running_requests: preempt all running requests first. They are admitted again in the next step.
        """
        if reset_running_requests:
            for request in reversed(self.running.copy()):
                self.preempt(request)
        done = self.kv.reset()
        self.prefix_stats.reset |= done
        return done

    def reset_refusal(self) -> str | None:
        """Why `reset_prefix_cache()` would return False now; None if it would succeed."""
        held = self.kv.pool.num_usable - self.kv.pool.num_free
        if held == 0:
            return None
        holders = ", ".join(request.request_id for request in self.running)
        return f"{held} of {self.kv.pool.num_usable} KV blocks are held by running requests: {holders}."

    # ------------------------------------------------------------------------------------------------- questions

    @property
    def max_model_len(self) -> int:
        return self.config.scheduler.max_model_len

    def waiting_requests(self) -> Iterator[Request]:
        """Everything that waits: passed over first, then the waiting queue, each in order."""
        return chain(self.skipped, self.waiting)

    def has_unfinished_requests(self) -> bool:
        """Is there work that a step could do? Paused requests do not count."""
        if self.pause_state == "all":
            return False
        return bool(self.running) or (self.pause_state == "none" and bool(self.waiting or self.skipped))

    def has_requests_or_finished_to_announce(self) -> bool:
        """Is there reason to schedule? After the last request ends, one more, empty plan tells the executor so."""
        return self.has_unfinished_requests() or bool(self.finished_req_ids)

    def describe(self) -> str:
        """The scheduler in one line, then one line a request: for a bug report."""
        pool = self.kv.pool
        lines = [
            f"step {self.step}: {len(self.running)} running, {len(self.waiting) + len(self.skipped)} waiting, "
            f"{pool.num_free} of {pool.num_usable} blocks free, budget {self.config.scheduler.token_budget} tokens, "
            f"policy {self.config.scheduler.policy}, pause {self.pause_state}"
        ]
        for request in chain(self.running, self.waiting_requests()):
            lines.append(
                f"{request.request_id}: {request.status}, {request.num_prompt_tokens} prompt + "
                f"{request.num_output_tokens} of {request.max_tokens} output tokens, {request.num_computed_tokens} computed "
                f"({self.in_flight.get(request.request_id, 0)} in flight), {len(request.block_ids)} blocks, "
                f"priority {request.priority}, preempted {request.num_preemptions} times"
            )
        return "\n".join(lines)

    def snapshot(self) -> snapshots.Snapshot:
        """Everything that `restore` needs to make the scheduler what it is now. See `scheduler/snapshot.py`."""
        return snapshots.take(self)

    def restore(self, snapshot: snapshots.Snapshot) -> None:
        """Become what the scheduler was when `snapshot` was taken. A snapshot may be restored any number of times."""
        snapshots.put_back(self, snapshot)

    # ----------------------------------------------------------------------------------------------------- parts

    def _lookup(self, request: Request) -> list[int]:
        if not self.kv.enable_caching or request.sampling_params.skip_reading_prefix_cache:
            return []
        hit = self.kv.lookup(request)
        self._count_lookup(self.prefix_stats, request, len(hit) * self.kv.block_size)
        return hit

    @staticmethod
    def _count_lookup(stats: PrefixCacheStats, request: Request, num_hit: int) -> None:
        if request.num_preemptions:
            stats.preempted_requests += 1
            stats.preempted_queries += len(request.token_ids)
            stats.preempted_hits += num_hit
        else:
            stats.requests += 1
            stats.queries += len(request.token_ids)
            stats.hits += num_hit

    def _may_defer_prefills(self) -> bool:
        return not self.has_backlog and any(not request.is_prefill_chunk for request in self.running)

    def _passed_over(self, request: Request, batch: Batch) -> bool:
        for rule in self.rules:
            if (refusal := rule.refusal(request)) is not None:
                if batch.log is not None:
                    batch.log.note(request.request_id, refusal[0], rule=rule.refusal, numbers=refusal[1])
                return True
        return False

    def _next_queue(self) -> RequestQueue | None:
        if self.skipped and (not self.waiting or self.skipped.goes_before(self.waiting)):
            return self.skipped
        return self.waiting or None

    def _queue_of(self, request: Request) -> RequestQueue | None:
        if request.status is _RUNNING:
            return None
        return self.skipped if request in self.skipped else self.waiting

    def _finish(self, request: Request, reason: FinishReason, stop_reason: int | None = None) -> None:
        """Release what it holds. The caller takes it off its queue."""
        request.status = RequestStatus.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason
        self.kv.release(request)
        del self.requests[request.request_id]
        self.finished_req_ids[request.request_id] = None

    def _leave_queue(self, request: Request) -> None:
        queue = self._queue_of(request)
        if queue is None:
            self.running.remove(request)
        else:
            queue.remove(request)

    def _take_stats(self) -> SchedulerStats:
        stats = SchedulerStats(
            num_running_reqs=len(self.running),
            num_waiting_reqs=len(self.waiting) + len(self.skipped),
            kv_cache_usage=self.kv.pool.usage,
            num_preemptions=self.preempted_since_update,
            prefix_cache=self.prefix_stats,
        )
        self.prefix_stats = PrefixCacheStats()
        self.preempted_since_update = 0
        return stats

    def _num_common_prefix_blocks(self) -> int:
        if not self.running:
            return 0
        return self.kv.num_common_prefix_blocks(self.running[0].block_ids, len(self.running))

    def _budget_numbers(self, left: int) -> dict[str, int]:
        budget = self.config.scheduler.token_budget
        return {"budget": budget, "used": budget - left}

    def _waiting_ids(self) -> Iterator[str]:
        return map(_id, self.waiting_requests())


def _id(request: Request) -> str:
    return request.request_id


def _tokens_numbers(tokens: int, remaining: int) -> dict[str, int]:
    return {"tokens": tokens, "remaining": remaining, "chunked": int(remaining > 0)}
