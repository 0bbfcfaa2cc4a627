import { readFileSync } from "node:fs";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { Fold } from "../src/core/fold";
import { bytesOfBase64 } from "../src/host/bytes";
import { Channel, type Status, type ToKernel } from "../src/host/channel";
import { Control, type ControlModel } from "../src/host/control";

const fixture = JSON.parse(readFileSync(new URL("fixtures/story.json", import.meta.url), "utf8")) as { records: string[] };
const records = fixture.records.map(bytesOfBase64);
const isKeyframe = (bytes: Uint8Array): boolean => new TextDecoder("latin1").decode(bytes.subarray(0, 16)).includes("keyframe");

/** One buffer at an odd offset, as a DataView: what anywidget hands over. */
function packed(list: Uint8Array[]): DataView[] {
  const size = list.reduce((sum, bytes) => sum + 4 + bytes.length, 0);
  const buffer = new Uint8Array(size + 3);
  const view = new DataView(buffer.buffer);
  let at = 3;
  for (const bytes of list) {
    view.setUint32(at, bytes.length, true);
    buffer.set(bytes, at + 4);
    at += 4 + bytes.length;
  }
  return [new DataView(buffer.buffer, 3, size)];
}

describe("the data channel", () => {
  let fold: Fold;
  let sent: ToKernel[];
  let statuses: Status[];
  let channel: Channel;
  let seq: number;
  const batch = (first: number, end: number): void =>
    channel.receive({ kind: "batch", seq: ++seq, first, count: end - first }, packed(records.slice(first, end)));

  beforeEach(() => {
    fold = new Fold();
    sent = [];
    statuses = [];
    seq = 0;
    channel = new Channel(fold, {
      send: (message) => sent.push(message),
      records: () => undefined,
      status: (status) => statuses.push(status),
      source: () => undefined,
    });
  });

  it("folds batches in order and acknowledges each", () => {
    batch(0, 10);
    batch(10, 40);
    expect(channel.have).toBe(40);
    expect(sent).toEqual([{ kind: "ack", seq: 1 }, { kind: "ack", seq: 2 }]);
    expect(fold.live.step).toBeGreaterThan(8);
  });

  it("folds nothing twice when batches overlap", () => {
    batch(0, 20);
    const { length } = fold;
    batch(10, 20);
    expect(fold.length).toBe(length);
    batch(15, 30);
    expect(channel.have).toBe(30);
  });

  it("asks for a keyframe on a gap, once, and goes on from it", () => {
    batch(0, 10);
    const keyframe = records.findIndex(isKeyframe);
    batch(keyframe + 5, keyframe + 8);
    batch(keyframe + 8, keyframe + 9);
    expect(sent.filter((message) => message.kind === "keyframe")).toHaveLength(1);
    expect(sent.filter((message) => message.kind === "ack")).toHaveLength(3);
    const told = [records[0], records[1], records[keyframe]];
    channel.receive({ kind: "keyframe", seq: ++seq, first: keyframe + 1, count: 3 }, packed(told));
    expect([channel.have, channel.lost, fold.live.step]).toEqual([keyframe + 1, true, 20]);
    batch(keyframe + 1, records.length);
    expect(fold.live.step).toBe(42);
    expect([fold.history.base, fold.history.end]).toEqual([0, 43]);
  });

  it("hands a status on without its kind", () => {
    channel.receive({ kind: "status", state: "paused", reason: "by hand" });
    expect(statuses).toEqual([{ state: "paused", reason: "by hand" }]);
  });
});

class FakeControl implements ControlModel {
  traits: Record<string, unknown> = { answered_off_main: false, hellos: 0 };
  comm_live = true;
  kernel = new Set<() => void>();
  widget_manager = {
    kernel: {
      disposed: {
        connect: (callback: () => void) => this.kernel.add(callback),
        disconnect: (callback: () => void) => this.kernel.delete(callback),
      },
    },
  };
  sent: unknown[] = [];
  handlers: { event: string; callback: () => void; context: unknown }[] = [];
  get = (name: string): unknown => this.traits[name];
  on = (event: string, callback: () => void, context?: unknown): void => void this.handlers.push({ event, callback, context });
  off = (_event: string | null, _callback: unknown, context?: unknown): void => {
    this.handlers = this.handlers.filter((handler) => handler.context !== context);
  };
  send = (message: unknown): void => void this.sent.push(message);
  fire(event: string): void {
    for (const handler of this.handlers) if (handler.event === event) handler.callback();
  }
}

describe("the control channel", () => {
  beforeEach(() => void vi.useFakeTimers());

  it("says hello until it is answered off the main thread", () => {
    const model = new FakeControl();
    const control = new Control(model, () => undefined);
    control.hello();
    vi.advanceTimersByTime(650);
    expect(model.sent).toHaveLength(3);
    model.traits.answered_off_main = true;
    model.fire("change:answered_off_main");
    vi.advanceTimersByTime(5000);
    expect([control.liveness, model.sent.length]).toEqual(["live", 3]);
  });

  it("gives up after ten hellos: controls then wait for the cell; a late answer still makes it live", () => {
    const model = new FakeControl();
    const control = new Control(model, () => undefined);
    control.hello();
    vi.advanceTimersByTime(20_000);
    expect([control.liveness, model.sent.length]).toEqual(["between", 10]);
    model.traits.answered_off_main = true;
    model.fire("change:hellos");
    expect(control.liveness).toBe("live");
  });

  it("does not believe an answer that a saved notebook brought along", () => {
    const model = new FakeControl();
    model.traits.answered_off_main = true;
    expect(new Control(model, () => undefined).liveness).toBe("asking");
  });

  it("knows when the kernel is gone, and sends no more", () => {
    const model = new FakeControl();
    const control = new Control(model, () => undefined);
    model.comm_live = false;
    model.fire("comm_live_update");
    control.send({ kind: "keyframe" });
    expect([control.liveness, model.sent.length]).toEqual(["gone", 0]);
  });

  it("knows when the kernel was shut down, which closes no comm", () => {
    const model = new FakeControl();
    const control = new Control(model, () => undefined);
    for (const tell of model.kernel) tell();
    expect(control.liveness).toBe("gone");
  });

  it("leaves nothing behind", () => {
    const model = new FakeControl();
    const control = new Control(model, () => undefined);
    control.hello();
    control.dispose();
    vi.advanceTimersByTime(5000);
    expect([model.handlers.length, model.kernel.size, model.sent.length, vi.getTimerCount()]).toEqual([0, 0, 1, 0]);
  });
});
