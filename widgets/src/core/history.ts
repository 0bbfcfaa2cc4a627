// What the timeline shows: a column a quantity with one number a step, and a lane a request with its changes of kind.

import type { Executed, Failed, Scheduled, Updated } from "./records";
import type { State } from "./state";

export const SERIES = ["schedule", "prepare", "forward", "sample", "update"] as const;
const COLUMNS = [...SERIES, "prefill", "decode", "running", "waiting", "used", "preempted", "finished", "at", "violations", "budget", "queries", "hits"] as const;
export type Column = (typeof COLUMNS)[number];

/** Totals up to and with a step, rather than of it. */
const TOTALS: ReadonlySet<Column> = new Set(["queries", "hits"]);

/** violations: -1 if the books were not checked in that step. budget: of tokens. queries, hits: tokens of the prefix cache. */
export class History {
  /** The step of the first row. */
  base = 0;
  readonly columns = Object.fromEntries(COLUMNS.map((name) => [name, [] as number[]])) as Record<Column, number[]>;
  readonly lanes = new Map<number, Lane>();
  readonly failures = new Map<number, string>();
  readonly breaks = new Map<number, string>();
  /** Steps, from and to, of which no record came. */
  holes: [from: number, to: number][] = [];

  get length(): number {
    return this.columns.at.length;
  }

  /** The step after the last row. */
  get end(): number {
    return this.base + this.length;
  }

  value(column: Column, step: number): number {
    return this.columns[column][step - this.base] ?? 0;
  }

  private set(column: Column, step: number, value: number): void {
    this.columns[column][step - this.base] = value;
  }

  /** Rows up to and with `step`. */
  private reach(step: number): void {
    if (this.length === 0) this.base = step;
    if (this.end < step) this.holes.push([this.end, step]);
    while (this.end <= step) {
      const before = this.end - 1;
      for (const name of COLUMNS) this.columns[name].push(TOTALS.has(name) ? this.value(name, before) : name === "violations" ? -1 : 0);
    }
  }

  scheduled(record: Scheduled, prefill: number, decode: number, budget: number): void {
    this.reach(record.step);
    this.set("budget", record.step, budget);
    this.set("schedule", record.step, record.schedule_s);
    this.set("prefill", record.step, prefill);
    this.set("decode", record.step, decode);
    this.set("preempted", record.step, record.preempted?.length ?? 0);
    this.set("at", record.step, record.at);
  }

  executed(record: Executed): void {
    this.set("prepare", record.step, record.prepare_s);
    this.set("forward", record.step, record.forward_s);
    this.set("sample", record.step, record.sample_s);
  }

  updated(record: Updated): void {
    this.set("update", record.step, record.update_s);
    this.set("finished", record.step, record.finished?.length ?? 0);
    this.set("at", record.step, record.at);
    const [, queries = 0, hits = 0] = record.prefix ?? [];
    this.set("queries", record.step, this.value("queries", record.step) + queries);
    this.set("hits", record.step, this.value("hits", record.step) + hits);
    if (record.violations) this.set("violations", record.step, record.violations.length);
  }

  failed(record: Failed, budget: number): void {
    this.reach(record.step);
    this.set("budget", record.step, budget);
    this.failures.set(record.step, record.error);
    this.set("at", record.step, record.at);
  }

  /** Numbers that only the folded state knows. */
  counts(step: number, state: State): void {
    this.set("running", step, state.running.length);
    this.set("waiting", step, state.waiting.length);
    this.set("used", step, state.blocks.count - 1 - state.blocks.numFree);
  }

  lane(request: number, step: number, kind: LaneKind): void {
    let lane = this.lanes.get(request);
    if (!lane) this.lanes.set(request, (lane = { request, steps: [], kinds: [] }));
    const last = lane.steps.length - 1;
    if (lane.kinds[last] === kind) return;
    if (lane.steps[last] === step && kind !== LaneKind.finished && kind !== LaneKind.preempted) lane.kinds[last] = kind;
    else {
      lane.steps.push(step);
      lane.kinds.push(kind);
    }
  }

  /** Forget `step` and all after it. */
  truncate(step: number): void {
    const rows = Math.max(0, Math.min(this.length, step - this.base));
    for (const name of COLUMNS) this.columns[name].length = rows;
    this.holes = this.holes.filter(([, to]) => to <= this.end);
    for (const [request, lane] of this.lanes) {
      const kept = lane.steps.findIndex((start, i) => start > step || (start === step && lane.kinds[i] !== LaneKind.waiting));
      if (kept >= 0) lane.steps.length = lane.kinds.length = kept;
      if (!lane.steps.length) this.lanes.delete(request);
    }
    for (const marks of [this.failures, this.breaks]) for (const at of marks.keys()) if (at >= step) marks.delete(at);
  }

  clear(): void {
    this.truncate(this.base);
    this.lanes.clear();
    this.failures.clear();
    this.breaks.clear();
  }
}

export enum LaneKind {
  waiting,
  prefill,
  decode,
  preempted,
  finished,
}

/** From steps[i] on, the request is in kinds[i]. */
export interface Lane {
  request: number;
  steps: number[];
  kinds: LaneKind[];
}
