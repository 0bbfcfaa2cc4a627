"""What a scheduler knows, and what may be done to it from outside between two phases of a step.

The rules of a step itself are in `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

from nbengine.config import EngineConfig
from nbengine.errors import DuplicateRequestError, InvalidRequestError, RuleError
from nbengine.kv_cache.manager import KVCacheManager
from nbengine.protocol import FinishReason, PrefixCacheStats
from nbengine.scheduler.decision import Decision
from nbengine.scheduler.request import Request, RequestStatus
from nbengine.scheduler.request_queue import FCFSQueue, KeyedQueue, RequestQueue
from nbengine.scheduler.rules import AdmissionRule, LoraSlots

PauseState = Literal["none", "new", "all"]  # run; admit nobody; compute nothing


class SchedulerState:
    """Queues, requests and KV blocks; adding, ending, preempting and pausing; and questions about all of it.

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
        self.budget_in_flight = 0  # the token budget of that plan
        self.finished_req_ids: dict[str, None] = {}  # ended, to be announced by the next plan; in order
        self.has_backlog = False  # the last admission pass that let prefills in left requests waiting

    def waiting_key(self, request: Request) -> Any:
        """The priority policy's order of admission: the smallest key first. Request ids compare as strings.

        A subclass that overrides this is asked whatever the policy.
        """
        return (request.priority, request.arrival_time, request.request_id)

    def make_queue(self) -> RequestQueue:
        """An empty waiting queue: by key under the priority policy, and wherever a subclass has a key of its own."""
        keyed = self.config.scheduler.policy == "priority" or type(self).waiting_key is not SchedulerState.waiting_key
        return KeyedQueue(self.waiting_key) if keyed else FCFSQueue()

    # ---------------------------------------------------------------------------------------------- from outside

    def add_request(self, request: Request) -> None:
        """Put a new request into the waiting queue.

        Raises DuplicateRequestError for the id of a live request, InvalidRequestError for one that could never run,
        RuleError if the rule that says where it belongs fails. Then nothing has changed.
        """
        if request.request_id in self.requests:
            raise DuplicateRequestError(f"A request {request.request_id!r} is live already: choose another id, or abort it.")
        if (refusal := self.refusal(request)) is not None:
            raise InvalidRequestError(refusal)
        self.kv.hash_full_blocks(request)
        with self._queueing(request):
            self.waiting.add(request)
        self.requests[request.request_id] = request

    def refusal(self, request: Request) -> str | None:
        """Why a request could never be admitted, even alone; None if it can. vLLM would let it block the queue for ever."""
        length, limits = request.num_tokens, self.config.scheduler
        needed, usable = self.kv.blocks_for(length), self.kv.pool.num_usable
        if needed > usable:
            return (
                f"Request {request.request_id!r} can never fit: its {length} prompt tokens need {needed} KV blocks of "
                f"{self.kv.block_size} tokens, and {usable} are available. Shorten the prompt or enlarge the KV cache."
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
        it is lost. Raises InvalidRequestError if the request is not running, RuleError if the rule that says where it
        belongs in the queue fails; then nothing has changed.
        """
        if request.status is not RequestStatus.RUNNING:
            raise InvalidRequestError(
                f"Only a running request can be preempted, and {request.request_id!r} is {request.status}."
            )
        computed, is_chunk = request.num_computed_tokens, request.is_prefill_chunk
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.is_prefill_chunk = True
        request.num_preemptions += 1
        try:
            with self._queueing(request):
                self.waiting.prepend(request)
        except RuleError:
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens, request.is_prefill_chunk = computed, is_chunk
            request.num_preemptions -= 1
            raise
        self.running.remove(request)
        self.kv.forget_uncomputed(request, computed - self.in_flight.get(request.request_id, 0))
        self.kv.release(request)
        self.num_preemptions += 1
        self.preempted_since_update += 1

    def set_priority(self, request: Request, priority: int) -> None:
        """Change how important a live request is, and its place in the queue with it.

        Raises RuleError, and nothing has changed, if the rule that says where it belongs fails.
        """
        queue, before = self._queue_of(request), request.priority
        request.priority = priority
        if queue is None:
            return
        try:
            with self._queueing(request):
                queue.reorder(request)
        except RuleError:
            request.priority = before
            raise

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

    # ----------------------------------------------------------------------------------------------------- parts

    @contextmanager
    def _queueing(self, request: Request) -> Iterator[None]:
        """A rule, maybe a person's own, says where the request belongs. If it fails, say whose it is, and when that was."""
        try:
            yield
        except Exception as error:
            reason = str(error) if isinstance(error, RuleError) else f"{type(error).__name__}: {error}"
            name = type(self).__name__
            raise RuleError(f"{name} cannot queue {request.request_id!r} in step {self.step}: {reason}") from error

    def _queue_of(self, request: Request) -> RequestQueue | None:
        if request.status is RequestStatus.RUNNING:
            return None
        return self.skipped if request in self.skipped else self.waiting

    def _finish(self, request: Request, reason: FinishReason, stop_reason: int | str | None = None) -> None:
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
