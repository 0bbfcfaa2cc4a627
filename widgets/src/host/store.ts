// What a page knows: the fold, where one looks, what is chosen and hovered, and how to tell the engine something.
// One store a Lab model: all its views and panes look at the same moment and light up together.

import { Fold } from "../core/fold";
import type { State } from "../core/state";
import type { FoundSource, Status } from "./channel";
import type { Liveness } from "./control";

export type Tab = "request" | "step" | "batch" | "why" | "source";

/** The way to the engine, if there is one. */
export interface Wire {
  liveness(): Liveness;
  command(name: string, args: Record<string, unknown>): number;
  hello(): void;
}

export interface SourceView {
  file: string;
  line: number;
  found: FoundSource | null;
  waiting: boolean;
}

const SETTLE_MS = 160;
const FRAME_MS = 90; // between steps when a recording plays

export class Store {
  readonly fold = new Fold();
  wire: Wire | null = null;
  capabilities: string[] = [];
  status: Status = {};
  /** A place in the stream; null: the live end. */
  place: number | null = null;
  selected = -1;
  hovered = -1;
  selectedBlock = -1;
  hoveredBlock = -1;
  tab: Tab = "why";
  source: SourceView | null = null;
  playing = false;
  /** Someone scrubs right now: long lists show their first screenful only, until the picture stands still. */
  moving = false;
  /** Counts every change; panes compare it. */
  version = 0;
  private listeners = new Set<() => void>();
  private frame = 0;
  private settling: ReturnType<typeof setTimeout> | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  get state(): State {
    return this.place === null ? this.fold.live : this.fold.seek(this.place);
  }

  get end(): number {
    return this.place ?? this.fold.length;
  }

  get isRecording(): boolean {
    return this.wire === null || !this.capabilities.some((name) => name !== "source");
  }

  get gone(): boolean {
    return this.wire?.liveness() === "gone" || (this.status.state === "closed" && !this.isRecording);
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size) return;
      this.stop();
      clearTimeout(this.settling);
      cancelAnimationFrame(this.frame);
      this.frame = 0;
    };
  }

  get numListeners(): number {
    return this.listeners.size;
  }

  /** Tell the views, once a frame however much changed. */
  changed(): void {
    this.version++;
    if (this.frame || !this.listeners.size) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const listener of [...this.listeners]) listener();
    });
  }

  set<K extends "selected" | "hovered" | "selectedBlock" | "hoveredBlock" | "tab">(name: K, value: this[K]): void {
    if (this[name] === value) return;
    (this as Store)[name] = value;
    this.changed();
  }

  select(request: number): void {
    this.selected = this.selected === request ? -1 : request;
    if (this.selected >= 0 && (this.tab === "step" || this.tab === "source")) this.tab = "request";
    this.changed();
  }

  // ------------------------------------------------------------------------------------------------------ looking back

  look(place: number): void {
    const first = this.fold.placeAfter(-1);
    this.place = place >= this.fold.length && !this.isRecording ? null : Math.max(first, Math.min(place, this.fold.length));
    this.moving = true;
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      this.moving = false;
      this.changed();
    }, SETTLE_MS);
    this.changed();
  }

  lookAtStep(step: number): void {
    const { history, live } = this.fold;
    if (!history.length) return;
    if (step >= live.shownStep) this.backToNow();
    else this.look(this.fold.placeAfter(Math.max(history.base, step)));
  }

  backToNow(): void {
    this.place = null;
    this.changed();
  }

  scrub(steps: number): void {
    this.lookAtStep(this.state.shownStep + steps);
  }

  scrubPhase(direction: 1 | -1): void {
    this.look(this.fold.nextPhase(this.end, direction));
  }

  // --------------------------------------------------------------------------------------------------------- the engine

  can(name: string): boolean {
    return this.wire !== null && !this.gone && this.capabilities.includes(name);
  }

  /** To the engine, if it takes that; a recording is played instead. */
  command(name: string, args: Record<string, unknown> = {}): void {
    if (this.isRecording || this.gone) this.play(name, args);
    else if (this.can(name)) {
      this.wire?.command(name, args);
      if (name !== "break") this.place = null;
      this.changed();
    } else if (name === "back") this.scrub(-1);
    else if (name === "goto") this.lookAtStep(Number(args.step ?? 0));
  }

  private play(name: string, args: Record<string, unknown>): void {
    const actions: Record<string, () => void> = {
      run: () => this.start(),
      pause: () => this.stop(),
      phase: () => this.scrubPhase(1),
      step: () => this.scrub(1),
      back: () => this.scrub(-1),
      goto: () => this.lookAtStep(Number(args.step ?? 0)),
    };
    if (name !== "run") this.stop();
    actions[name]?.();
  }

  private start(): void {
    if (this.state.shownStep >= this.fold.live.shownStep) this.lookAtStep(this.fold.history.base);
    this.playing = true;
    const tick = (): void => {
      if (this.state.shownStep >= this.fold.live.shownStep) return this.stop();
      this.scrub(1);
      this.timer = setTimeout(tick, FRAME_MS);
    };
    clearTimeout(this.timer);
    this.timer = setTimeout(tick, FRAME_MS);
    this.changed();
  }

  stop(): void {
    clearTimeout(this.timer);
    if (!this.playing) return;
    this.playing = false;
    this.changed();
  }

  // ------------------------------------------------------------------------------------------------------------- source

  openSource(file: string, line: number): void {
    this.tab = "source";
    const known = this.source?.file === file && this.source.line === line && this.source.found;
    if (!known) this.source = { file, line, found: null, waiting: this.can("source") };
    if (!known && this.can("source")) this.wire?.command("source", { file, line });
    this.changed();
  }

  receiveSource(found: FoundSource | null): void {
    if (!this.source) return;
    this.source = { ...this.source, found, waiting: false };
    this.changed();
  }

  receiveStatus(status: Status): void {
    this.status = status;
    this.changed();
  }
}
