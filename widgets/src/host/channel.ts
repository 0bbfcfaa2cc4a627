// The data channel: records from the kernel into the fold. The other end is nbengine_widgets/publisher.py.
//
// Kernel -> browser (custom messages on the Lab model; one buffer: records, each after its length as little-endian uint32):
//   {kind: "batch", seq, first, count}           records number first … first + count - 1
//   {kind: "keyframe", seq, first, count, lost}  records that stand for all before number `first`
//   {kind: "status", …}                          state, reason, tokens_per_s, breakpoints, message, busy
//   {kind: "source", id, found}                  the answer to a "source" command
// Browser -> kernel (on the control model, see control.ts):
//   {kind: "ready", have}   a page has opened and holds records 0 … have - 1
//   {kind: "ack", seq}      a batch has been folded; the kernel keeps at most two unanswered
//   {kind: "keyframe"}      records are missing
//   {kind: "command", id, name, args} and {kind: "hello"}

import type { Fold } from "../core/fold";
import { splitRecords } from "../core/records";
import { bytesOf } from "./bytes";

export interface Breakpoint {
  number: number;
  text: string;
  enabled: boolean;
  hits: number;
  /** What its predicate raised; it is switched off then. */
  error?: string;
  event?: string;
  request?: string;
  step?: number;
  phase?: string;
  block?: number;
  seconds?: number;
  count?: number;
  once?: boolean;
  /** Absent for a condition written in Python. */
  condition?: [measure: string, sign: string, limit: number];
}

export interface Status {
  state?: "running" | "paused" | "idle" | "failed" | "closed";
  reason?: string;
  tokens_per_s?: number;
  breakpoints?: Breakpoint[];
  message?: string;
  busy?: boolean;
}

export interface FoundSource {
  file: string;
  first_line: number;
  lines: string[];
}

type Numbered = { seq: number; first: number; count: number };
export type FromKernel =
  | ({ kind: "batch" } & Numbered)
  | ({ kind: "keyframe"; lost?: boolean } & Numbered)
  | ({ kind: "status" } & Status)
  | { kind: "source"; id: number; found: FoundSource | null };

export type ToKernel =
  | { kind: "ready"; have: number }
  | { kind: "ack"; seq: number }
  | { kind: "keyframe" }
  | { kind: "hello" }
  | { kind: "command"; id: number; name: string; args: Record<string, unknown> };

export interface ChannelEvents {
  send(message: ToKernel): void;
  records(): void;
  status(status: Status): void;
  source(id: number, found: FoundSource | null): void;
}

export class Channel {
  /** The number of the next record wanted. */
  have = 0;
  /** Records that went missing for good. */
  lost = false;
  private waitsForKeyframe = false;

  constructor(
    private readonly fold: Fold,
    private readonly events: ChannelEvents,
  ) {}

  receive(message: FromKernel, buffers: (DataView | ArrayBuffer)[] = []): void {
    if (message.kind === "status") {
      const { kind: _, ...status } = message;
      this.events.status(status);
    } else if (message.kind === "source") {
      this.events.source(message.id, message.found);
    } else if (message.kind === "batch" || message.kind === "keyframe") {
      this.take(message, buffers);
      this.events.send({ kind: "ack", seq: message.seq });
      this.events.records();
    }
  }

  private take(message: FromKernel & Numbered, buffers: (DataView | ArrayBuffer)[]): void {
    const isKeyframe = message.kind === "keyframe";
    if (!isKeyframe && message.first > this.have) {
      if (!this.waitsForKeyframe) this.events.send({ kind: "keyframe" });
      this.waitsForKeyframe = true;
      return;
    }
    if (isKeyframe) {
      this.waitsForKeyframe = false;
      this.lost = this.lost || message.first > this.have;
    } else if (this.waitsForKeyframe) return;
    const records = buffers.flatMap((buffer) => splitRecords(bytesOf(buffer)));
    const known = isKeyframe ? 0 : this.have - message.first;
    for (const record of records.slice(known)) this.fold.push(record);
    this.have = Math.max(isKeyframe ? message.first : this.have, message.first + (isKeyframe ? 0 : records.length));
  }
}
