"""Continuous batching: in every step, which requests compute how many tokens, in which KV blocks.

`schedule()` plans a step and `update_from_output()` takes its result. Between the two the model runs, elsewhere. The rules
are vLLM 0.25.1's v1 scheduler's: running requests first, in the order of their admission; then the waiting ones, until
one does not fit. When a running request finds no block, another loses its blocks and starts over later.

To change a rule, subclass: `choose_victim` says who loses its blocks, `waiting_key` in which order requests are admitted,
under either policy; `make_queue` gives the queue, should a key not do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from nbengine.errors import RuleError
from nbengine.kv_cache.manager import Room
from nbengine.plan import ModelRunnerOutput, NewRequestData, SchedulerOutput
from nbengine.protocol import EngineCoreOutput, EngineCoreOutputs, PrefixCacheStats, SchedulerStats
from nbengine.scheduler import invariants
from nbengine.scheduler import snapshot as snapshots
from nbengine.scheduler.batch import Batch
from nbengine.scheduler.decision import Decision, DecisionLog, Verdict, rule_name
from nbengine.scheduler.request import Request, RequestStatus
from nbengine.scheduler.request_queue import RequestQueue
from nbengine.scheduler.state import SchedulerState
from nbengine.scheduler.stopping import stop_of

_RUNNING = RequestStatus.RUNNING


class Scheduler(SchedulerState):
    """Decides every step. Owned by one thread."""

    def choose_victim(self) -> Request:
        """The running request that loses its blocks when one finds none: the last admitted, or the least important."""
        if self.config.scheduler.policy == "priority":
            return max(self.running, key=lambda request: (request.priority, request.arrival_time))
        return self.running[-1]

    # ------------------------------------------------------------------------------------------------- the step

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Plan the next step: tokens for running requests, then admissions.

        On return the plan's tokens count as computed. throttle_prefills: data parallel only: this rank must not begin
        prefills in this step, lest all others wait for it.
        """
        budget = 0 if self.pause_state == "all" else self.config.scheduler.token_budget
        batch = Batch(budget, DecisionLog(self.decisions))
        self.in_flight, self.budget_in_flight = batch.tokens, budget
        if self.pause_state == "all":
            batch.log.note_rest(self.requests, Verdict.PAUSED)
        deferring = throttle_prefills and self._may_defer_prefills()
        self._schedule_running(batch, deferring)
        continuing = batch.continuing()
        if batch.preempted:
            batch.log.note_rest(self._waiting_ids(), Verdict.ADMISSION_OFF, batch.preempted[0])
        elif self.pause_state != "none":
            batch.log.note_rest(self._waiting_ids(), Verdict.PAUSED)
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
        running, tokens, log = self.running, batch.tokens, batch.log
        computed_column, next_tokens = batch.computed, batch.next_tokens
        observed = self.decisions is not None
        chunk_limit = limits.long_prefill_token_threshold or limits.max_model_len
        last_computable = limits.max_model_len - 1  # the last token of a full context is never an input
        budget = batch.budget
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            index += 1
            computed = request.num_computed_tokens
            token_ids = request.token_ids
            num_tokens = len(token_ids)
            want = num_tokens - computed
            if want != 1:
                want = min(want, chunk_limit, budget, last_computable - computed)
                if want <= 0:
                    log.note(request.request_id, Verdict.NO_NEED)
                    continue
            if deferring and request.is_prefill_chunk:
                log.note(request.request_id, Verdict.THROTTLED)
                continue
            end = computed + want
            if end > request.num_slots:
                given_back = self._make_room(request, end, batch)
                if given_back is None:
                    log.note_rest(map(_id, running), Verdict.PASS_ENDED, request.request_id)
                    break
                budget += sum(given_back)
                index -= len(given_back)
            if end >= request.next_full:
                self.kv.index_full_blocks(request, end)
            tokens[request.request_id] = want
            computed_column.append(computed)
            next_tokens.append(token_ids[computed])
            budget -= want
            if observed:
                verdict = Verdict.PREFILL if request.is_prefill_chunk else Verdict.DECODE
                log.note(request.request_id, verdict, numbers=_tokens_numbers(want, num_tokens - end))
            request.num_computed_tokens = end
            request.is_prefill_chunk = end < num_tokens
        log.note_rest(map(_id, running), Verdict.BUDGET, numbers=self._budget_numbers(budget))
        batch.budget = budget

    def _make_room(self, request: Request, end: int, batch: Batch) -> list[int] | None:
        """Blocks for a running request up to token `end`, taken from others where the pool has too few.

        Returns the tokens taken back from each victim that had got some in this step; None if the request itself was
        the victim and lost its place.
        """
        given_back = []
        while isinstance(added := self.kv.grow(request, end), Room):
            victim = self.choose_victim()
            if victim not in self.running:
                raise RuleError(f"{rule_name(self.choose_victim)} returned {victim!r}; it must return one of self.running.")
            had = self.in_flight.get(victim.request_id, 0)
            numbers = {"needs": added.needs, "free": added.free, "computed": victim.num_computed_tokens - had}
            self.preempt(victim)
            if batch.take_back(victim.request_id):
                given_back.append(had)
            batch.preempted.append(victim.request_id)
            own = victim is request
            verdict, cause = (Verdict.SELF_PREEMPTED, None) if own else (Verdict.PREEMPTED, request.request_id)
            numbers["freed"] = self.kv.pool.num_free - added.free
            batch.log.withdraw(victim.request_id)
            batch.log.note(victim.request_id, verdict, cause, self.choose_victim, numbers)
            if own:
                return None
        batch.added_blocks[request.request_id] = added
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
                numbers = {"running": len(self.running), "limit": limit}
                batch.log.note_rest(self._waiting_ids(), Verdict.MAX_NUM_SEQS, numbers=numbers)
                break
            request = queue.peek()
            if self._passed_over(request, batch):
                aside.append(queue.pop())
            elif not self._try_admit(request, queue, batch, deferring):
                batch.log.note_rest(self._waiting_ids(), Verdict.BEHIND, request.request_id)
                break
        for request in reversed(aside):
            self.skipped.prepend(request)
        batch.log.note_rest(self._waiting_ids(), Verdict.BUDGET, numbers=self._budget_numbers(batch.budget))

    def _try_admit(self, request: Request, queue: RequestQueue, batch: Batch, deferring: bool) -> bool:
        """Give the head of `queue` its tokens and blocks, if it fits. Else note why not and change nothing."""
        limits, log, request_id = self.config.scheduler, batch.log, request.request_id
        hit = self._lookup(request)
        num_tokens = len(request.token_ids)
        num_hit = len(hit) * self.kv.block_size
        if deferring and num_hit < num_tokens - 1:
            log.note(request_id, Verdict.THROTTLED)
            return False
        want = num_tokens - num_hit
        if 0 < limits.long_prefill_token_threshold < want:
            want = limits.long_prefill_token_threshold
        if want > batch.budget and not limits.enable_chunked_prefill:
            log.note(request_id, Verdict.CHUNK_TOO_BIG, numbers={"needs": want, "budget": batch.budget})
            return False
        want = min(want, batch.budget)
        watermark = int(limits.watermark * self.kv.pool.num_blocks) if self.running else 0
        if limits.scheduler_reserve_full_isl:
            room = self.kv.room_to_admit(hit, min(num_tokens, limits.max_model_len), watermark)
            if not room.fits:
                log.note(request_id, Verdict.RESERVE, numbers=room._asdict())
                return False
        room = self.kv.room_to_admit(hit, min(num_hit + want, limits.max_model_len), watermark)
        if not room.fits:
            log.note(request_id, Verdict.NO_BLOCKS, numbers=room._asdict())
            return False
        verdict = Verdict.RESUMED if request.status is RequestStatus.PREEMPTED else Verdict.ADMITTED
        numbers = {**_tokens_numbers(want, num_tokens - num_hit - want), "hit": num_hit}
        log.note(request_id, verdict, numbers=numbers)
        self.kv.admit(request, hit, num_hit + want)
        self._admit(queue.pop(), num_hit, want, batch)
        return True

    def _admit(self, request: Request, num_hit: int, want: int, batch: Batch) -> None:
        """A request that has its blocks: to the end of `running`, with `want` tokens of this step."""
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
        if output.prompt_logprobs:
            self._keep_prompt_logprobs(plan, output)
        get_request = self.requests.get
        for request_id, new_ids, logprobs in zip(
            output.request_ids, output.sampled_token_ids, output.logprobs or repeat(None)
        ):
            request = get_request(request_id)
            if request is None or request.status is not _RUNNING or not new_ids:
                continue
            token_ids = request.token_ids
            before = len(token_ids)
            entry = EngineCoreOutput(request_id=request_id, new_token_ids=new_ids, new_logprobs=logprobs)
            if before == request.num_prompt_tokens:
                entry.num_cached_tokens = request.num_cached_tokens
                entry.prompt_logprobs = request.prompt_logprobs or None
            outputs.append(entry)
            for token in new_ids:
                token_ids.append(token)
                if token in request.ending_ids or len(token_ids) >= request.max_total or request.repetition:
                    stop = stop_of(request, token, self.max_model_len)
                    if stop is not None:
                        entry.finish_reason, entry.stop_reason = stop
                        entry.new_token_ids = token_ids[before:]
                        self._finish(request, *stop)
                        any_stopped = True
                        break
        if any_stopped:
            self.running = [request for request in self.running if request.status is _RUNNING]
        self.in_flight = {}
        return EngineCoreOutputs(step=plan.step, outputs=outputs, stats=self._take_stats())

    def _keep_prompt_logprobs(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
        """Gather what each chunk of a prompt gives. After a preemption the first positions come a second time: not kept."""
        for request_id, part in output.prompt_logprobs.items():
            request = self.requests.get(request_id)
            if request is not None and request.status is _RUNNING:
                start = request.num_computed_tokens - plan.num_scheduled_tokens[request_id]
                request.prompt_logprobs += part[len(request.prompt_logprobs) - start :]

    def snapshot(self) -> snapshots.Snapshot:
        """Everything that `restore` needs to make the scheduler what it is now. See `scheduler/snapshot.py`.

        A subclass with state of its own extends both.
        """
        return snapshots.take(self)

    def restore(self, snapshot: snapshots.Snapshot) -> None:
        """Become what the scheduler was when `snapshot` was taken. A snapshot may be restored any number of times."""
        snapshots.put_back(self, snapshot)

    def preview(self) -> tuple[SchedulerOutput, list[Decision]]:
        """What `schedule()` would plan now, and why. Changes nothing, and no observer sees it."""
        saved, ops, decisions = self.snapshot(), self.kv.pool.ops, self.decisions
        self.kv.pool.ops, self.decisions = None, []
        try:
            return self.schedule(), self.decisions
        finally:
            self.restore(saved)
            self.kv.pool.ops, self.decisions = ops, decisions

    def violations(self) -> list[str]:
        """What does not add up in the books, a sentence each; empty when all is well. See `scheduler/invariants.py`."""
        return [violation.message for violation in invariants.violations(self)]

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
                batch.log.note(request.request_id, refusal[0], rule=rule.refusal, numbers=refusal[1])
                return True
        return False

    def _next_queue(self) -> RequestQueue | None:
        if self.skipped and (not self.waiting or self.skipped.goes_before(self.waiting)):
            return self.skipped
        return self.waiting or None

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
