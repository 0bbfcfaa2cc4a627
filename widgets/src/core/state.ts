// The engine at one moment, and how a delta changes it: nbengine/observe/view.py again, kept in step by tests/fixtures.

import { Blocks, OP_WIDTH, OpCode } from "./blocks";
import type { Delta } from "./delta";

export type Status = "waiting" | "running" | "preempted" | "finished";
export type Phase = "schedule" | "execute" | "update";

/** A view forgets the oldest finished requests beyond this many. */
const FINISHED_KEPT = 1000;

export interface Request {
  index: number;
  id: string;
  status: Status;
  /** Prompt and output; shared between moments, of which each counts `numTokens` of them. */
  tokens: number[];
  numTokens: number;
  numPrompt: number;
  computed: number;
  maxTokens: number;
  blockIds: number[];
  priority: number;
  prompt: string | null;
  params: Record<string, unknown>;
  cached: number;
  preemptions: number;
  scheduled: number;
  addedAt: number;
  firstAt: number | null;
  lastAt: number | null;
  finishReason: string | null;
  /** The State.epoch that may change this object; any other must copy it first. */
  epoch: number;
}

let epochs = 0;
const none: ReadonlyMap<number, number> = new Map();

export class State {
  step = 0;
  phase: Phase = "schedule";
  at = 0;
  /** Seconds that all phases have taken so far; requests' times are on this clock, which stands while the engine does. */
  busy = 0;
  requests: (Request | undefined)[] = [];
  running: number[] = [];
  waiting: number[] = [];
  finished: number[] = [];
  /** The requests of the step under way, or last done. */
  batch: number[] = [];
  error: string | null = null;
  /** Options that were changed since the header, by name. Replaced, never changed. */
  options: Readonly<Record<string, unknown>> = {};
  /** Sampled tokens of the step that were replaced by hand, by request. Replaced, never changed. */
  edited: ReadonlyMap<number, number> = none;
  private epoch = ++epochs;

  constructor(public blocks: Blocks) {}

  /** The step under way, or the last one done; -1 before the first. One that could not even be scheduled is under way too. */
  get shownStep(): number {
    return this.phase === "schedule" && this.error === null ? this.step - 1 : this.step;
  }

  /** Requests are shared until one side changes them; both sides get a new epoch. */
  copyFrom(source: State): void {
    this.step = source.step;
    this.phase = source.phase;
    this.at = source.at;
    this.busy = source.busy;
    this.requests = source.requests.slice();
    this.running = source.running;
    this.waiting = source.waiting;
    this.finished = source.finished;
    this.batch = source.batch;
    this.error = source.error;
    this.options = source.options;
    this.edited = source.edited;
    if (this.blocks.count === source.blocks.count) this.blocks.copyFrom(source.blocks);
    else this.blocks = source.blocks.clone();
    this.epoch = ++epochs;
    source.epoch = ++epochs;
  }

  clone(): State {
    const copy = new State(new Blocks(this.blocks.count));
    copy.copyFrom(this);
    return copy;
  }

  request(index: number): Request | undefined {
    return index < 0 ? undefined : this.requests[index];
  }

  apply(delta: Delta): void {
    if (delta.kind === "nothing") return;
    if (delta.kind === "jump") {
      this.copyFrom(delta.target);
      return;
    }
    if (delta.kind === "scheduled" || (delta.kind === "failed" && delta.phase === "schedule")) this.endBatch();
    if (delta.kind === "added") this.add(delta);
    this.replayOps(delta.ops, delta.step);
    this.at = delta.at;
    this.busy += delta.seconds ?? 0;
    switch (delta.kind) {
      case "aborted":
        this.end(delta.request, delta.reason);
        break;
      case "changed":
        delta.preempted.forEach((index) => this.preempt(index));
        if (delta.token !== null) this.edited = new Map([...this.edited, [delta.request, delta.token]]);
        if (delta.options) this.options = { ...this.options, ...delta.options };
        if (delta.priority !== null) this.change(delta.request, (request) => (request.priority = delta.priority as number));
        break;
      case "scheduled":
        this.schedule(delta);
        break;
      case "executed":
        this.phase = "update";
        this.error = null;
        break;
      case "updated":
        this.update(delta);
        break;
      case "failed":
        this.phase = delta.phase as Phase;
        this.error = delta.error;
    }
    if (delta.running) this.running = delta.running;
    if (delta.waiting) this.waiting = delta.waiting;
  }

  private endBatch(): void {
    for (const index of this.batch) this.change(index, (request) => (request.scheduled = 0));
    this.batch = [];
  }

  private own(index: number): Request | undefined {
    const request = this.requests[index];
    if (!request || request.epoch === this.epoch) return request;
    return (this.requests[index] = { ...request, blockIds: request.blockIds.slice(), epoch: this.epoch });
  }

  private change(index: number, how: (request: Request) => void): void {
    const request = this.own(index);
    if (request) how(request);
  }

  private add(delta: Delta & { kind: "added" }): void {
    const { index } = delta.request;
    if (this.requests[index]) this.finished = this.finished.filter((other) => other !== index);
    this.requests[index] = { ...delta.request, addedAt: this.busy, blockIds: [], epoch: this.epoch };
    if (delta.toEnd) this.waiting = [...this.waiting, index];
  }

  private schedule(delta: Delta & { kind: "scheduled" }): void {
    delta.preempted.forEach((index) => this.preempt(index));
    const batch: number[] = [];
    for (let i = 0; i < delta.rows.length; i += 3) {
      const request = this.own(delta.rows[i]);
      batch.push(delta.rows[i]);
      if (!request) continue;
      request.status = "running";
      request.scheduled = delta.rows[i + 1];
      request.computed = delta.rows[i + 2] + delta.rows[i + 1];
    }
    for (let i = 0; i < delta.hits.length; i += 2) this.change(delta.hits[i], (r) => (r.cached = delta.hits[i + 1]));
    this.batch = batch;
    this.step = delta.step;
    this.phase = "execute";
    this.error = null;
    this.edited = none;
  }

  private update(delta: Delta & { kind: "updated" }): void {
    delta.requests.forEach((index, i) => {
      const tokens = delta.tokens[i];
      const request = tokens.length ? this.own(index) : undefined;
      if (!request) return;
      for (const token of tokens) request.tokens[request.numTokens++] = token;
      request.lastAt = this.busy;
      request.firstAt ??= this.busy;
    });
    for (const [index, reason] of delta.finished) this.end(index, reason);
    this.step = delta.step + 1;
    this.phase = "schedule";
    this.error = null;
  }

  private preempt(index: number): void {
    this.change(index, (request) => {
      request.status = "preempted";
      request.computed = 0;
      request.preemptions++;
      request.scheduled = 0;
    });
  }

  private end(index: number, reason: string): void {
    this.change(index, (request) => {
      request.status = "finished";
      request.finishReason = reason;
    });
    if (this.waiting.includes(index)) this.waiting = this.waiting.filter((other) => other !== index);
    else this.running = this.running.filter((other) => other !== index);
    this.finished = [...this.finished, index];
    while (this.finished.length > FINISHED_KEPT) {
      this.requests[this.finished[0]] = undefined;
      this.finished = this.finished.slice(1);
    }
  }

  private replayOps(ops: Int32Array | undefined, step: number): void {
    if (!ops) return;
    const { blocks } = this;
    for (let i = 0; i < ops.length; i += OP_WIDTH) {
      const code = ops[i];
      const block = ops[i + 1];
      const who = ops[i + 2];
      if (block < 0 || block >= blocks.count) continue;
      blocks.touched[block] = step;
      if (code === OpCode.allocate || code === OpCode.hit) {
        blocks.takeFree(block);
        blocks.addOwner(block, who);
        const request = this.own(who);
        if (request) blocks.place[block] = request.blockIds.push(block) - 1;
      } else if (code === OpCode.evict || code === OpCode.uncache) {
        blocks.hash[block] = -1;
      } else if (code === OpCode.cache) {
        blocks.hash[block] = ops[i + 3];
        const before = blocks.place[block] && this.requests[who]?.blockIds[blocks.place[block] - 1];
        blocks.parents.set(ops[i + 3], before === undefined || before === 0 ? -1 : blocks.hash[before]);
      } else {
        blocks.removeOwner(block, who);
        const table = this.own(who)?.blockIds;
        // A table is released from its end, so the last place is nearly always the one.
        if (table?.[table.length - 1] === block) table.pop();
        else if (table?.includes(block)) table.splice(table.indexOf(block), 1);
        if (code === OpCode.freeFront) blocks.pushFront(block);
        if (code === OpCode.freeBack) blocks.pushBack(block);
      }
    }
  }
}
