"""Random lives: adds, aborts, preemptions, resets, changed options, in every order and between any two phases. The books add
up after each move, every plan is explained, the ops tell the whole pool, and a snapshot brings everything back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nbengine.errors import InvalidRequestError
from nbengine.plan import SchedulerOutput
from nbengine.scheduler.decision import Verdict
from nbengine.scheduler.invariants import violations
from nbengine.scheduler.request import RequestStatus
from nbengine.scheduler.snapshot import Snapshot
from tests.kv_cache.replay import Replay
from tests.scheduler.desk import Desk
from tests.scheduler.state import state_of

GOT_TOKENS = {Verdict.DECODE, Verdict.PREFILL, Verdict.ADMITTED, Verdict.RESUMED}
LEGAL = {  # by one move
    ("waiting", "running"),
    ("running", "preempted"),
    ("preempted", "running"),
    ("waiting", "finished"),
    ("running", "finished"),
    ("preempted", "finished"),
}


class Machine(RuleBasedStateMachine):
    @initialize(
        usable=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 4]),
        budget=st.integers(4, 24),
        policy=st.sampled_from(["fcfs", "priority"]),
        caching=st.booleans(),
        reserve=st.booleans(),
        threshold=st.sampled_from([0, 0, 3]),
        watermark=st.sampled_from([0.0, 0.2]),
        max_loras=st.sampled_from([0, 1]),
    )
    def start(
        self, usable: int, block_size: int, budget: int, policy: str, caching: bool, reserve: bool, threshold: int,
        watermark: float, max_loras: int,
    ) -> None:  # fmt: skip
        self.desk = Desk(
            usable,
            block_size=block_size,
            max_num_seqs=4,
            max_num_batched_tokens=budget,
            max_model_len=max(2, min(usable * block_size, 24)),
            policy=policy,
            enable_prefix_caching=caching,
            scheduler_reserve_full_isl=reserve,
            long_prefill_token_threshold=threshold,
            watermark=watermark,
            max_loras=max_loras,
        )
        self.scheduler = self.desk.scheduler
        self.scheduler.kv.pool.ops = []
        self.replay = Replay(usable + 1)
        self.plan: SchedulerOutput | None = None
        self.statuses: dict[str, str] = {}
        self.kept: tuple[Snapshot, dict[str, Any], Replay, SchedulerOutput | None] | None = None
        self.num_added = 0

    @precondition(lambda self: len(self.scheduler.requests) < 10)
    @rule(count=st.integers(2, 5), data=st.data())
    def add_some(self, count: int, data: st.DataObject) -> None:
        for _ in range(count):
            self.add(data.draw(st.integers(1, 16)), data.draw(st.integers(0, 2)), data.draw(st.integers(1, 12)), data)

    @precondition(lambda self: len(self.scheduler.requests) < 10)
    @rule(length=st.integers(1, 16), family=st.integers(0, 2), max_tokens=st.integers(1, 12), data=st.data())
    def add(self, length: int, family: int, max_tokens: int, data: st.DataObject) -> None:
        options: dict[str, Any] = {"max_tokens": max_tokens, "priority": data.draw(st.integers(0, 2))}
        if self.scheduler.rules and (lora := data.draw(st.integers(0, 2))):
            options |= {"lora_id": lora, "lora_name": f"lora{lora}"}
        prompt = [family * 100 + position for position in range(min(length, self.scheduler.max_model_len - 1))]
        name = f"r{self.num_added}"
        self.num_added += 1
        try:
            self.desk.add(name, prompt, **options)
        except InvalidRequestError as error:  # only ever for want of space, with both numbers
            assert f"need {self.scheduler.kv.blocks_for(len(prompt))} KV blocks" in str(error)

    @precondition(lambda self: self.plan is None)
    @rule(throttle=st.booleans(), again=st.booleans())
    def schedule(self, throttle: bool, again: bool) -> None:
        scheduler = self.scheduler
        if again:  # the same state makes the same plan
            before = state_of(scheduler)
            expected, reasons = scheduler.preview()
            assert state_of(scheduler) == before and scheduler.decisions is None
        live = set(scheduler.requests)
        scheduler.decisions = []
        self.plan = scheduler.schedule(throttle and not again)
        decisions, scheduler.decisions = scheduler.decisions, None
        assert not again or (self.plan, decisions) == (expected, reasons)
        assert sorted(decision.request_id for decision in decisions) == sorted(live)
        tokens = {d.request_id: d.numbers["tokens"] for d in decisions if d.verdict in GOT_TOKENS}
        assert tokens == self.plan.num_scheduled_tokens
        assert all(decision.line > 0 for decision in decisions)
        assert self.plan.total_num_scheduled_tokens <= scheduler.config.scheduler.token_budget

    @precondition(lambda self: self.plan is not None)
    @rule()
    def update(self) -> None:
        assert self.plan is not None
        self.desk.update(self.plan, self.desk.execute(self.plan))
        self.plan = None

    @rule(count=st.integers(1, 8), throttle=st.booleans())
    def steps(self, count: int, throttle: bool) -> None:
        for _ in range(count):
            if self.plan is None:
                self.schedule(throttle, again=False)
                self.books_add_up()
                self.statuses_change_legally()
            self.update()
            self.books_add_up()
            self.statuses_change_legally()

    @precondition(lambda self: self.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from([*self.scheduler.requests, "ghost"]), min_size=1, max_size=3))
        live = [name for name in dict.fromkeys(names) if name in self.scheduler.requests]
        assert self.scheduler.finish_requests(names) == live

    @precondition(lambda self: self.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.scheduler.preempt(data.draw(st.sampled_from(self.scheduler.running)))

    @rule(by_force=st.booleans())
    def reset_prefix_cache(self, by_force: bool) -> None:
        done = self.scheduler.reset_prefix_cache(by_force)
        assert done or not by_force
        assert done == (self.scheduler.reset_refusal() is None)
        assert not (done and self.scheduler.kv.pool.index)

    @rule(seqs=st.integers(1, 4), budget=st.integers(4, 24))
    def change_options(self, seqs: int, budget: int) -> None:
        limits = self.scheduler.config.scheduler
        limits.max_num_seqs, limits.max_num_batched_tokens = seqs, budget

    @rule(pause=st.sampled_from(["new", "all"]), count=st.integers(1, 2))
    def pause_for_a_while(self, pause: Any, count: int) -> None:
        self.scheduler.pause_state = pause
        self.steps(count, throttle=False)
        self.scheduler.pause_state = "none"

    @precondition(lambda self: self.scheduler.requests)
    @rule(priority=st.integers(0, 3), data=st.data())
    def change_priority(self, priority: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.scheduler.requests)))
        self.scheduler.set_priority(self.scheduler.requests[name], priority)

    @rule()
    def keep(self) -> None:
        self._fold()
        snapshot = self.scheduler.snapshot()
        assert snapshot.nbytes > 0
        replay = Replay(0)
        replay.owners = [list(owners) for owners in self.replay.owners]
        replay.hashes, replay.free = list(self.replay.hashes), list(self.replay.free)
        self.kept = snapshot, state_of(self.scheduler), replay, self.plan

    @precondition(lambda self: self.kept is not None)
    @rule()
    def go_back(self) -> None:
        assert self.kept is not None
        snapshot, state, self.replay, self.plan = self.kept
        self.kept = None
        self.scheduler.restore(snapshot)
        assert state_of(self.scheduler) == state
        self.scheduler.kv.pool.ops = []
        self.statuses = {name: str(request.status) for name, request in self.scheduler.requests.items()}

    @invariant()
    def books_add_up(self) -> None:
        assert violations(self.scheduler) == []
        self._fold()
        self.replay.check(self.scheduler.kv.pool)

    @invariant()
    def statuses_change_legally(self) -> None:
        """R074: a status changes only along these arrows, and what waits is never running."""
        for request in self.scheduler.requests.values():
            before = self.statuses.get(request.request_id, "waiting")
            # a running request may be preempted and admitted again between two looks, by one schedule
            assert before == request.status or (before, str(request.status)) in LEGAL
        for name, status in self.statuses.items():
            assert name in self.scheduler.requests or (status, "finished") in LEGAL
        self.statuses = {name: str(request.status) for name, request in self.scheduler.requests.items()}
        assert all(r.status is not RequestStatus.RUNNING for r in self.scheduler.waiting_requests())

    def _fold(self) -> None:
        ops = self.scheduler.kv.pool.ops
        assert ops is not None
        self.replay.apply(ops)
        self.scheduler.kv.pool.ops = []

    def teardown(self) -> None:
        """Whatever happened: everyone left can still run to the end, and all blocks come back."""
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        if self.plan is not None:
            self.desk.update(self.plan, self.desk.execute(self.plan))
        scheduler.pause_state, scheduler.kv.pool.ops = "none", None
        self.desk.run(limit=2000)
        assert self.desk.num_free == scheduler.kv.pool.num_usable


TestMachine = pytest.mark.filterwarnings("error")(Machine.TestCase)
TestMachine.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
