// The fold of a record stream: the live state, the history for the timeline, and any past moment by its place in the stream.
//
// Each record is kept as it came (for the inspector) and as a delta of plain numbers. A past moment is the nearest
// snapshot before it and the deltas from there: no record is decoded while someone scrubs.

import { Blocks } from "./blocks";
import { type Delta, type Tables, compile } from "./delta";
import { History, LaneKind } from "./history";
import { stateOfKeyframe } from "./keyframe";
import { limitsOf } from "./limits";
import { Names } from "./names";
import { type AnyRecord, type Executed, type Failed, type Header, type Keyframe, type Scheduled, type Updated, decodeRecord } from "./records";
import { State } from "./state";

const SNAPSHOT_STEPS = 64;
const SNAPSHOT_WORK = 200_000; // numbers to replay, at most, whatever the number of steps

/** Where a step's records are in the stream; -1 if they have not come. */
interface StepPlaces {
  scheduled: number;
  executed: number;
  updated: number;
  failed: number;
}

export interface StepRecords {
  step: number;
  scheduled?: Scheduled;
  executed?: Executed;
  updated?: Updated;
  failed?: Failed;
}

export class Fold {
  header: Header | null = null;
  live = new State(new Blocks(0));
  readonly history = new History();
  readonly texts = new Map<number, string>();
  readonly tables: Tables = { ids: new Names(), hashes: new Names() };
  /** Changes whenever anything does. */
  version = 0;
  private headerBytes: Uint8Array = new Uint8Array();
  private raw: Uint8Array[] = [];
  private deltas: Delta[] = [];
  private snapshots: { place: number; state: State }[] = [];
  private places = new Map<number, StepPlaces>();
  private scrub: { place: number; state: State } | null = null;
  private work = 0;
  private decoded = new Map<number, AnyRecord>();

  get length(): number {
    return this.deltas.length;
  }

  push(bytes: Uint8Array): void {
    const record = decodeRecord(bytes);
    this.version++;
    if (record.t === "header") return this.start(record, bytes);
    if (record.t === "texts") {
      record.token_ids.forEach((token, i) => this.texts.set(token, record.texts[i]));
      return;
    }
    if (record.t === "keyframe") return this.jump(record, bytes);
    const delta = compile(record, this.tables);
    if (!delta) return;
    const first = record.t === "scheduled" ? this.beforeScheduled(record) : undefined;
    this.live.apply(delta);
    this.append(bytes, delta);
    this.note(record, delta, first);
  }

  /** The state after the first `place` records; all of them: the live one. Valid until the next call. */
  seek(place: number): State {
    if (place >= this.length) return this.live;
    const snapshot = this.snapshots.findLast((candidate) => candidate.place <= place);
    const scrub = (this.scrub ??= { place: Infinity, state: new State(new Blocks(this.live.blocks.count)) });
    if (scrub.place > place || (snapshot && snapshot.place > scrub.place)) {
      if (!snapshot) return this.live;
      scrub.state.copyFrom(snapshot.state);
      scrub.place = snapshot.place;
    }
    for (; scrub.place < place; scrub.place++) scrub.state.apply(this.deltas[scrub.place]);
    return scrub.state;
  }

  /** The place right after the last record of `step`, within what is there. */
  placeAfter(step: number): number {
    if (step >= this.history.end && !this.places.has(step)) return this.length;
    for (; step >= this.history.base; step--) {
      const at = this.places.get(step);
      if (at) return 1 + Math.max(at.scheduled, at.executed, at.updated, at.failed);
    } // in a hole: as it was before it
    return this.snapshots[0]?.place ?? 0;
  }

  /** The next place at which a phase ends, after (or before) `place`. */
  nextPhase(place: number, direction: 1 | -1): number {
    const isPhase = (i: number): boolean => ["scheduled", "executed", "updated"].includes(this.deltas[i - 1]?.kind);
    let at = place + direction;
    while (at > 0 && at < this.length && !isPhase(at)) at += direction;
    return Math.max(this.snapshots[0]?.place ?? 0, Math.min(this.length, at));
  }

  /** What is known of `step` at `place`, decoded. */
  step(step: number, place = this.length): StepRecords {
    const at = this.places.get(step);
    const found: StepRecords = { step };
    if (!at) return found;
    const record = <T extends AnyRecord>(index: number): T | undefined =>
      index >= 0 && index < place ? (this.decodeAt(index) as T) : undefined;
    found.scheduled = record<Scheduled>(at.scheduled);
    found.executed = record<Executed>(at.executed);
    found.updated = record<Updated>(at.updated);
    found.failed = record<Failed>(at.failed);
    return found;
  }

  text(token: number): string {
    return this.texts.get(token) ?? `⟨${token}⟩`;
  }

  id(request: number): string {
    return this.tables.ids.list[request] ?? "";
  }

  /** A keyframe carries the header again: then it is the same run, and what is known of it stays. */
  private start(header: Header, bytes: Uint8Array): void {
    const same = this.headerBytes.length === bytes.length && this.headerBytes.every((byte, i) => byte === bytes[i]);
    if (same) return;
    this.header = header;
    this.headerBytes = bytes;
    this.live = new State(Blocks.fresh(header.num_blocks));
    this.raw = [];
    this.deltas = [];
    this.places.clear();
    this.decoded.clear();
    this.history.clear();
    this.scrub = null;
    this.snapshots = [{ place: 0, state: this.live.clone() }];
  }

  private jump(frame: Keyframe, bytes: Uint8Array): void {
    const target = stateOfKeyframe(frame, this.tables, this.length || this.header ? this.live : null);
    const back = frame.step < this.live.step || (frame.step === this.live.step && phaseOrder(frame.phase) < phaseOrder(this.live.phase));
    const gap = frame.step > this.live.step + (this.live.phase === "schedule" ? 0 : 1);
    if (back) this.cutTo(frame.step, frame.phase);
    if (gap && !this.history.length) this.forget();
    this.live = target.clone();
    this.append(bytes, { kind: "jump", step: frame.step, at: frame.at, target });
    this.snapshots.push({ place: this.length, state: target });
    this.work = 0;
    this.laneKinds(frame, gap || back);
    if (gap) this.endLanes(frame);
  }

  /** A first keyframe: what lies before it is unknown, and cannot be scrubbed to without lying. */
  private forget(): void {
    this.raw = [];
    this.deltas = [];
    this.places.clear();
    this.decoded.clear();
    this.history.clear();
    this.snapshots = [];
    this.scrub = null;
  }

  /** What the requests are doing: all of them after a `jump`, else those of whom no record has told before. */
  private laneKinds(frame: Keyframe, jump: boolean): void {
    for (const { request_id, status, num_computed_tokens, num_prompt_tokens } of frame.requests) {
      const index = this.tables.ids.index(request_id);
      if (status === "finished" || (!jump && this.history.lanes.has(index))) continue;
      const decoding = num_computed_tokens >= num_prompt_tokens;
      const kinds: Record<string, LaneKind> = { waiting: 0, preempted: 3, running: decoding ? 2 : 1 };
      this.history.lane(index, frame.step, kinds[status] ?? 0);
    }
  }

  /** Who is not alive after a gap ended somewhere in it. */
  private endLanes(frame: Keyframe): void {
    const alive = new Set([...frame.running, ...frame.waiting].map((id) => this.tables.ids.index(id)));
    for (const [request, lane] of this.history.lanes) {
      const ended = lane.kinds[lane.kinds.length - 1] === LaneKind.finished;
      if (!ended && !alive.has(request)) this.history.lane(request, frame.step - 1, LaneKind.finished);
    }
  }

  private append(bytes: Uint8Array, delta: Delta): void {
    this.raw.push(bytes);
    this.deltas.push(delta);
    if (delta.kind === "scheduled") this.work += delta.rows.length * 2 + (delta.ops?.length ?? 0);
  }

  /** Prefill and decode tokens of a plan, told from the requests as they were before it. */
  private beforeScheduled(record: Scheduled): number[] {
    let prefill = 0;
    let decode = 0;
    record.request_ids.forEach((id, i) => {
      const request = this.live.request(this.tables.ids.find(id));
      if (!request) return;
      const decodes = request.numTokens > request.numPrompt && record.computed[i] >= request.numTokens - 1;
      if (decodes) decode += record.tokens[i];
      else prefill += record.tokens[i];
      this.history.lane(request.index, record.step, decodes ? LaneKind.decode : LaneKind.prefill);
    });
    return [prefill, decode];
  }

  private note(record: AnyRecord, delta: Delta, first: number[] | undefined): void {
    const { history, live } = this;
    const place = this.length - 1;
    const at = (step: number): StepPlaces => {
      let known = this.places.get(step);
      if (!known) this.places.set(step, (known = { scheduled: -1, executed: -1, updated: -1, failed: -1 }));
      return known;
    };
    if (record.t === "scheduled") {
      at(record.step).scheduled = place;
      history.scheduled(record, first?.[0] ?? 0, first?.[1] ?? 0, limitsOf(this.header, live).budget);
      history.counts(record.step, live);
      if (delta.kind === "scheduled") delta.preempted.forEach((index) => history.lane(index, record.step, LaneKind.preempted));
    } else if (record.t === "executed") {
      at(record.step).executed = place;
      history.executed(record);
    } else if (record.t === "updated") {
      at(record.step).updated = place;
      history.updated(record);
      history.counts(record.step, live);
      if (delta.kind === "updated") for (const [index] of delta.finished) history.lane(index, record.step, LaneKind.finished);
      this.maybeSnapshot();
    } else if (record.t === "failed") {
      at(record.step).failed = place;
      history.failed(record, limitsOf(this.header, live).budget);
      history.counts(record.step, live);
    } else this.noteInput(record, delta);
  }

  private noteInput(record: AnyRecord, delta: Delta): void {
    const { history } = this;
    if (delta.kind === "added") history.lane(delta.request.index, delta.step, LaneKind.waiting);
    if (delta.kind === "aborted") history.lane(delta.request, delta.step, LaneKind.finished);
    if (delta.kind === "changed") delta.preempted.forEach((index) => history.lane(index, delta.step, LaneKind.preempted));
    if (record.t === "changed" && record.what === "pause") history.breaks.set(record.step, String(record.values.reason ?? "paused"));
  }

  private maybeSnapshot(): void {
    const last = this.snapshots[this.snapshots.length - 1];
    if (last && this.live.step - last.state.step < SNAPSHOT_STEPS && this.work < SNAPSHOT_WORK) return;
    this.snapshots.push({ place: this.length, state: this.live.clone() });
    this.work = 0;
  }

  /** Drop what the engine took back: everything from `phase` of `step` on. */
  private cutTo(step: number, phase: string): void {
    const at = this.places.get(step);
    const first = phase === "schedule" ? at?.scheduled : phase === "execute" ? at?.executed : at?.updated;
    const place = first !== undefined && first >= 0 ? first : this.deltas.findIndex((delta) => delta.step >= step);
    if (place < 0) return;
    this.raw.length = this.deltas.length = place;
    this.snapshots = this.snapshots.filter((snapshot) => snapshot.place <= place);
    this.scrub = null;
    this.decoded.clear();
    for (const known of this.places.keys()) if (known > step) this.places.delete(known);
    if (at) {
      for (const name of ["scheduled", "executed", "updated", "failed"] as const) if (at[name] >= place) at[name] = -1;
    }
    if (at && at.scheduled < 0) this.places.delete(step);
    this.history.truncate(phase === "schedule" ? step : step + 1);
  }

  private decodeAt(index: number): AnyRecord {
    let record = this.decoded.get(index);
    if (!record) {
      record = decodeRecord(this.raw[index]);
      if (this.decoded.size > 64) this.decoded.clear();
      this.decoded.set(index, record);
    }
    return record;
  }
}

function phaseOrder(phase: string): number {
  return ["schedule", "execute", "update"].indexOf(phase);
}
