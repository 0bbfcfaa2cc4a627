"""A small pretend engine that makes record streams for the Lab: for looking at, for fixtures, and for measuring.

It is no model of vLLM; it only keeps books as an engine would (queues, blocks, prefix cache, preemption), so that what the
Lab folds from the records can be compared with what the engine itself says.
"""

from __future__ import annotations

import random
import struct
from collections import OrderedDict
from typing import Any

import msgspec

from nbengine.kv_cache.ops import BlockOp, Op
from nbengine.observe import records as r
from nbengine.plan import BatchTensors
from nbengine.scheduler.decision import Decision, Verdict

TEXT = (
    "the roads of Rome were built so well that armies and merchants could travel far in every season because each layer of"
    " stone sand and lime carried water away from its surface while milestones told how far it was to the next town and why"
    " they lasted so long is still a question that engineers ask when they look at bridges walls and harbours today"
)
WORDS = TEXT.split()
SCHEDULER = "nbengine/scheduler/scheduler.py"


class Ask(msgspec.Struct):
    """A request of the story: when it comes, its prompt's length, how much of it is the shared system prompt."""

    name: str
    step: int
    prompt: int
    output: int
    shared: int = 0


class Req:
    def __init__(self, ask: Ask, tokens: list[int]) -> None:
        self.id, self.prompt, self.limit = ask.name, len(tokens), ask.output
        self.tokens = tokens
        self.computed = self.indexed = self.cached = self.preemptions = 0
        self.status = "waiting"
        self.blocks: list[int] = []
        self.reason: str | None = None


class Engine:
    """schedule, execute, update; every change goes into a record."""

    def __init__(
        self, *, blocks: int, block_size: int, budget: int, max_seqs: int, seed: int = 3, batches: bool = True
    ) -> None:
        self.size, self.budget, self.max_seqs, self.batches = block_size, budget, max_seqs, batches
        self.random = random.Random(seed)
        self.owners: list[list[str]] = [[] for _ in range(blocks)]
        self.hashes: list[str | None] = [None] * blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self.index: dict[str, int] = {}
        self.requests: dict[str, Req] = {}
        self.running: list[Req] = []
        self.waiting: list[Req] = []
        self.finished: list[str] = []
        self.step, self.phase, self.clock = 0, "schedule", 0.0
        self.records: list[bytes] = []
        self.views: list[dict[str, Any]] = []
        self.ops: list[BlockOp] = []
        vocabulary = [" " + word for word in WORDS]
        self.emit(
            r.Header(
                model="demo-135m", num_blocks=blocks, block_size=block_size, max_num_seqs=max_seqs, token_budget=budget,
                max_model_len=4096, policy="fcfs", enable_prefix_caching=True, enable_chunked_prefill=True,
                created="2026-11-29T12:00:00Z",
            )
        )  # fmt: skip
        self.emit(r.Texts(token_ids=list(range(len(vocabulary))), texts=vocabulary))

    def emit(self, record: r.AnyRecord) -> None:
        self.records.append(r.encoder.encode(record))

    # ------------------------------------------------------------------------------------------------------------- blocks

    def hash_of(self, req: Req, place: int) -> str:
        return f"{hash(tuple(req.tokens[: (place + 1) * self.size])) & (2**64 - 1):016x}"

    def note(self, op: Op, block: int, req: Req | None = None, hash: str | None = None) -> None:
        self.ops.append(BlockOp(op, block, req.id if req else None, hash))

    def allocate(self, req: Req, count: int) -> None:
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            if (old := self.hashes[block]) is not None:
                self.hashes[block] = None
                if self.index.get(old) == block:
                    del self.index[old]
                self.note(Op.EVICT, block)
            self.owners[block].append(req.id)
            req.blocks.append(block)
            self.note(Op.ALLOCATE, block, req)

    def enter_full_blocks(self, req: Req, upto: int) -> None:
        for place in range(req.indexed, upto // self.size):
            block, key = req.blocks[place], self.hash_of(req, place)
            self.hashes[block] = key
            self.index.setdefault(key, block)
            self.note(Op.CACHE, block, req, key)
        req.indexed = max(req.indexed, upto // self.size)

    def release(self, req: Req) -> None:
        bare: list[int] = []
        for block in reversed(req.blocks):
            self.owners[block].remove(req.id)
            if self.owners[block]:
                self.note(Op.DEREF, block, req)
            elif self.hashes[block] is None:
                bare.append(block)
            else:
                self.free[block] = None
                self.note(Op.FREE_BACK, block, req)
        for block in reversed(bare):
            self.free[block] = None
            self.free.move_to_end(block, last=False)
            self.note(Op.FREE_FRONT, block, req)
        req.blocks, req.indexed = [], 0

    # ------------------------------------------------------------------------------------------------------------- phases

    def add(self, ask: Ask) -> None:
        shared = [i % len(WORDS) for i in range(ask.shared)]
        tokens = shared + [self.random.randrange(len(WORDS)) for _ in range(ask.prompt - ask.shared)]
        req = Req(ask, tokens)
        self.requests[req.id] = req
        self.waiting.append(req)
        text = "".join(" " + WORDS[token] for token in tokens).strip()
        self.emit(
            r.Added(
                step=self.step,
                at=self.clock,
                request_id=req.id,
                prompt_token_ids=list(tokens),
                max_tokens=ask.output,
                prompt=text,
            )
        )

    def schedule(self) -> None:
        started, self.ops, self.plan = self.clock, [], list[tuple[Req, int, int]]()
        self.decisions: list[Decision] = []
        self.preempted: list[str] = []
        left = self.run_running(self.budget)
        if not self.preempted:
            self.admit(left)
        else:
            for req in self.waiting:
                if req.id not in self.preempted:
                    self.decide(req, Verdict.ADMISSION_OFF, {}, 231, self.preempted[-1])
        seconds = 0.0011 + 1e-4 * len(self.decisions) + self.random.random() * 4e-4
        self.clock = started + seconds
        self.phase = "execute"
        self.emit(
            r.Scheduled(
                step=self.step, at=self.clock, schedule_s=seconds, request_ids=[req.id for req, _, _ in self.plan],
                tokens=[tokens for _, tokens, _ in self.plan], computed=[before for _, _, before in self.plan],
                preempted=self.preempted, decisions=self.decisions, block_ops=self.ops,
                running=[req.id for req in self.running], waiting=[req.id for req in self.waiting],
            )
        )  # fmt: skip

    def decide(self, req: Req, verdict: Verdict, numbers: dict[str, int], line: int, cause: str | None = None) -> None:
        self.decisions.append(Decision(req.id, verdict, numbers, cause, line, SCHEDULER))

    def run_running(self, left: int) -> int:
        for req in list(self.running):
            if req not in self.running:
                continue
            want = min(len(req.tokens) - req.computed, left)
            if want <= 0:
                self.decide(req, Verdict.BUDGET, {"budget": self.budget, "used": self.budget - left}, 180)
                continue
            need = -(-(req.computed + want) // self.size) - len(req.blocks)
            while need > len(self.free):
                victim = self.running[-1]
                self.preempt(victim, req, need)
                if victim is req:
                    return left
            self.allocate(req, max(0, need))
            left = self.give(req, want, left, None)
        return left

    def preempt(self, victim: Req, cause: Req, need: int) -> None:
        numbers = {"needs": need, "free": len(self.free), "computed": victim.computed, "freed": len(victim.blocks)}
        verdict = Verdict.SELF_PREEMPTED if victim is cause else Verdict.PREEMPTED
        self.decide(victim, verdict, numbers, 212, None if victim is cause else cause.id)
        self.release(victim)
        victim.computed, victim.status = 0, "preempted"
        victim.preemptions += 1
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self.preempted.append(victim.id)

    def give(self, req: Req, tokens: int, left: int, hit: int | None) -> int:
        before = req.computed
        remaining = max(0, req.prompt - before - tokens)
        numbers = {"tokens": tokens, "remaining": remaining, "chunked": int(before + tokens < len(req.tokens))}
        if hit is not None:
            verdict = Verdict.RESUMED if req.preemptions else Verdict.ADMITTED
            self.decide(req, verdict, numbers | {"hit": hit}, 268)
        elif before < req.prompt:
            self.decide(req, Verdict.PREFILL, numbers, 195)
        else:
            self.decide(req, Verdict.DECODE, {"tokens": tokens}, 195)
        req.computed += tokens
        self.enter_full_blocks(req, req.computed)
        self.plan.append((req, tokens, before))
        return left - tokens

    def admit(self, left: int) -> None:
        while self.waiting:
            req = self.waiting[0]
            if len(self.running) >= self.max_seqs:
                self.decide(req, Verdict.MAX_NUM_SEQS, {"running": len(self.running), "limit": self.max_seqs}, 240)
                break
            if left <= 0:
                self.decide(req, Verdict.BUDGET, {"budget": self.budget, "used": self.budget - left}, 244)
                break
            hits: list[int] = []
            while (len(hits) + 1) * self.size < len(req.tokens) and (key := self.hash_of(req, len(hits))) in self.index:
                hits.append(self.index[key])
            hit = len(hits) * self.size
            want = min(len(req.tokens) - hit, left)
            need = -(-(hit + want) // self.size) - len(hits)
            if need + sum(block in self.free for block in hits) > len(self.free):
                self.decide(req, Verdict.NO_BLOCKS, {"needs": need, "free": len(self.free), "watermark": 0}, 255)
                break
            for block in hits:
                self.free.pop(block, None)
                self.owners[block].append(req.id)
                self.note(Op.HIT, block, req)
            req.blocks, req.indexed, req.computed, req.cached = hits, len(hits), hit, hit
            self.allocate(req, need)
            self.waiting.pop(0)
            self.running.append(req)
            req.status = "running"
            left = self.give(req, want, left, hit)
        for behind in self.waiting[1:12]:
            self.decide(behind, Verdict.BEHIND, {}, 249, self.waiting[0].id)

    def execute(self) -> None:
        total = sum(tokens for _, tokens, _ in self.plan)
        wobble = 0.85 + 0.3 * self.random.random()
        times = [0.0014 * wobble, (0.006 + 0.00035 * total) * wobble, (0.0011 + 0.0002 * len(self.plan)) * wobble]
        self.sampled = [
            [self.random.randrange(len(WORDS))] if req.computed >= len(req.tokens) else [] for req, _, _ in self.plan
        ]
        self.clock += sum(times)
        self.phase = "update"
        self.emit(
            r.Executed(
                step=self.step, at=self.clock, execute_s=sum(times) + 2e-5, prepare_s=times[0], forward_s=times[1],
                sample_s=times[2], sampled=self.sampled, batch=self.tensors() if self.batches else None,
            )
        )  # fmt: skip

    def tensors(self) -> BatchTensors:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, lengths, top, probabilities = [0], list[int](), list[int](), list[float]()
        for (req, count, before), sampled in zip(self.plan, self.sampled):
            for position in range(before, before + count):
                tokens.append(req.tokens[position])
                positions.append(position)
                slots.append(req.blocks[position // self.size] * self.size + position % self.size)
            starts.append(len(tokens))
            lengths.append(before + count)
            top += [sampled[0], *((sampled[0] + 7 * k) % len(WORDS) for k in (1, 2))] if sampled else [-1, -1, -1]
            probabilities += [0.62, 0.2, 0.06] if sampled else [0.0, 0.0, 0.0]
        ints = [struct.pack(f"<{len(column)}i", *column) for column in (tokens, positions, slots, starts, lengths, top)]
        return BatchTensors(
            token_ids=ints[0], positions=ints[1], slot_mapping=ints[2], query_start_loc=ints[3], seq_lens=ints[4],
            num_alternatives=3, top_token_ids=ints[5], top_probs=struct.pack(f"<{len(probabilities)}f", *probabilities),
        )  # fmt: skip

    def update(self) -> None:
        self.ops = []
        ended: list[r.Finished] = []
        for (req, _, _), sampled in zip(self.plan, self.sampled):
            req.tokens += sampled
            if sampled and len(req.tokens) - req.prompt >= req.limit:
                req.reason = "length" if len(req.id) % 2 == 0 and req.limit % 2 else "stop"
                req.status = "finished"
                self.release(req)
                self.running.remove(req)
                self.finished.append(req.id)
                ended.append(r.Finished(req.id, req.reason))
        seconds = 0.0008 + 1e-4 * len(self.plan)
        self.clock += seconds
        self.emit(
            r.Updated(
                step=self.step, at=self.clock, update_s=seconds, request_ids=[req.id for req, _, _ in self.plan],
                tokens=self.sampled, finished=ended, block_ops=self.ops, running=[req.id for req in self.running],
                violations=[],
            )
        )  # fmt: skip
        self.step, self.phase = self.step + 1, "schedule"

    # -------------------------------------------------------------------------------------------------------------- views

    def canonical(self) -> dict[str, Any]:
        columns = {
            req.id: {
                "status": req.status, "num_tokens": len(req.tokens), "num_computed_tokens": req.computed,
                "block_ids": list(req.blocks), "num_cached_tokens": req.cached, "num_preemptions": req.preemptions,
                "finish_reason": req.reason,
            }
            for req in self.requests.values()
        }  # fmt: skip
        return {
            "step": self.step, "phase": self.phase, "running": [req.id for req in self.running],
            "waiting": [req.id for req in self.waiting], "finished": list(self.finished), "free_queue": list(self.free),
            "owners": [list(owners) for owners in self.owners], "hashes": list(self.hashes), "requests": columns,
        }  # fmt: skip

    def look(self) -> None:
        self.views.append({"after": len(self.records) - 1, "view": self.canonical()})

    def keyframe(self) -> r.Keyframe:
        states = [
            r.RequestState(
                request_id=req.id, status=req.status, token_ids=list(req.tokens), num_prompt_tokens=req.prompt,
                num_computed_tokens=req.computed, max_tokens=req.limit, block_ids=list(req.blocks),
                num_cached_tokens=req.cached, num_preemptions=req.preemptions, finish_reason=req.reason,
            )
            for req in self.requests.values()
        ]  # fmt: skip
        view = self.canonical()
        names = ("step", "phase", "running", "waiting", "finished", "owners", "hashes", "free_queue")
        return r.Keyframe(at=self.clock, requests=states, **{name: view[name] for name in names})
