import { describe, expect, it } from "vitest";
import { Fold } from "../src/core/fold";
import { LaneKind } from "../src/core/history";
import { limitsOf } from "../src/core/limits";
import { pack } from "./pack";

const header = {
  t: "header", version: 1, engine: "nbengine", model: "m", num_blocks: 9, block_size: 4, max_num_seqs: 4, token_budget: 32,
  max_model_len: 64, policy: "fcfs", enable_prefix_caching: true, enable_chunked_prefill: true, created: "now",
};
const added = (request_id: string, tokens: number[]) => ({ t: "added", step: 0, at: 0, request_id, prompt_token_ids: tokens, max_tokens: 9 });
const scheduled = (step: number, ids: string[]) => ({
  t: "scheduled", step, at: step, schedule_s: 0.1, request_ids: ids, tokens: ids.map(() => 4), computed: ids.map(() => 0), running: ids, waiting: [],
});
const executed = (step: number, sampled: number[][]) => ({ t: "executed", step, at: step, execute_s: 1, prepare_s: 0, forward_s: 1, sample_s: 0, sampled });
const updated = (step: number, ids: string[], prefix = [0, 0, 0]) => ({
  t: "updated", step, at: step, update_s: 0.1, request_ids: ids, tokens: ids.map(() => [7]), prefix,
});
const changed = (what: string, values: object, request_id: string | null = null) => ({ t: "changed", step: 0, at: 0, what, values, request_id });
const failed = (step: number, phase: string) => ({ t: "failed", step, at: step, phase, error: "IndexError: 7" });
const keyframe = (step: number, running: string[], waiting: string[] = []) => ({
  t: "keyframe", step, at: step, phase: "schedule", running, waiting, finished: [], hashes: Array(9).fill(null), owners: Array(9).fill([]),
  free_queue: [1, 2, 3, 4, 5, 6, 7, 8],
  requests: [...running, ...waiting].map((request_id) => ({
    request_id, status: running.includes(request_id) ? "running" : "waiting",
    token_ids: [1, 2, 3, 4, 7], num_prompt_tokens: 4, num_computed_tokens: 4, max_tokens: 9, block_ids: [],
  })),
});

function folded(...records: object[]): Fold {
  const fold = new Fold();
  for (const record of [header, ...records]) fold.push(pack(record));
  return fold;
}

describe("changes by hand", () => {
  it("moves the limits from then on, and seeking finds the old ones", () => {
    const fold = folded(added("a", [1, 2, 3, 4]), scheduled(0, ["a"]), executed(0, [[7]]), updated(0, ["a"]));
    const before = fold.length;
    fold.push(pack(changed("option", { token_budget: 8, max_num_seqs: 2, policy: "priority" })));
    fold.push(pack(scheduled(1, ["a"])));
    expect(limitsOf(fold.header, fold.live)).toEqual({ budget: 8, maxSeqs: 2, threshold: 0, policy: "priority" });
    expect(limitsOf(fold.header, fold.seek(before)).budget).toBe(32);
    expect([fold.history.value("budget", 0), fold.history.value("budget", 1)]).toEqual([32, 8]);
    fold.push(pack(keyframe(0, [])));
    expect(limitsOf(fold.header, fold.live).budget).toBe(8);
  });

  it("keeps an edited token for the step in which it was edited", () => {
    const fold = folded(added("a", [1, 2, 3, 4]), scheduled(0, ["a"]), executed(0, [[7]]), changed("edit_token", { token_id: 9, before: 7 }, "a"));
    expect([...fold.live.edited]).toEqual([[fold.tables.ids.find("a"), 9]]);
    fold.push(pack(updated(0, ["a"])));
    fold.push(pack(scheduled(1, ["a"])));
    expect(fold.live.edited.size).toBe(0);
  });
});

describe("a gap", () => {
  const first = [added("a", [1, 2, 3, 4]), added("b", [5]), scheduled(0, ["a", "b"]), executed(0, [[7], [8]]), updated(0, ["a", "b"])];

  it("is a hole in the same run's history: what lies before it stays", () => {
    const fold = folded(...first);
    for (const record of [header, keyframe(10, ["a"]), scheduled(10, ["a"])]) fold.push(pack(record));
    expect([fold.history.base, fold.history.end, fold.history.holes]).toEqual([0, 11, [[1, 10]]]);
    expect(fold.seek(fold.placeAfter(0)).step).toBe(1);
    expect(fold.seek(fold.placeAfter(5)).step).toBe(1);
    expect(fold.live.step).toBe(10);
    expect(fold.history.value("forward", 0)).toBe(1);
    const lane = fold.history.lanes.get(fold.tables.ids.find("b"))!;
    expect(lane.kinds[lane.kinds.length - 1]).toBe(LaneKind.finished);
  });

  it("before which nothing is known is no past at all", () => {
    const fold = folded(keyframe(10, ["a"]), scheduled(10, ["a"]));
    expect([fold.history.base, fold.history.holes]).toEqual([10, []]);
    expect(fold.seek(fold.placeAfter(3)).step).toBe(10);
  });

  it("to another run forgets this one", () => {
    const fold = folded(...first);
    fold.push(pack({ ...header, created: "later" }));
    expect([fold.length, fold.history.length]).toEqual([0, 0]);
  });
});

describe("requests that were there before the first record", () => {
  const lane = (fold: Fold, id: string) => fold.history.lanes.get(fold.tables.ids.find(id));

  it.each([0, 7])("have a lane from the keyframe at step %i on", (step) => {
    const fold = folded(keyframe(step, ["a"], ["b"]), { ...scheduled(step, ["a"]), waiting: ["b"] }, updated(step, ["a"]));
    expect(lane(fold, "b")).toMatchObject({ steps: [step], kinds: [LaneKind.waiting] });
    fold.push(pack(scheduled(step + 1, ["a", "b"])));
    expect(lane(fold, "b")!.kinds[0]).toBe(LaneKind.waiting);
  });

  it("and a keyframe on the way changes no lane", () => {
    const fold = folded(added("a", [1, 2, 3, 4]), scheduled(0, ["a"]), executed(0, [[7]]), updated(0, ["a"]));
    const before = structuredClone(lane(fold, "a"));
    fold.push(pack(keyframe(1, ["a"])));
    expect(lane(fold, "a")).toEqual(before);
  });
});

describe("a step that failed", () => {
  const first = [added("a", [1, 2, 3, 4]), scheduled(0, ["a"]), executed(0, [[7]]), updated(0, ["a"])];

  it("is the one that is shown, even if it could not be scheduled", () => {
    const fold = folded(...first, failed(1, "schedule"));
    expect([fold.live.shownStep, fold.live.error]).toEqual([1, "IndexError: 7"]);
    expect([fold.step(1).failed?.phase, fold.step(1).scheduled]).toEqual(["schedule", undefined]);
    expect([fold.live.batch, fold.live.request(0)!.scheduled]).toEqual([[], 0]);
    expect([fold.history.end, fold.history.value("running", 1), fold.history.value("budget", 1)]).toEqual([2, 1, 32]);
    expect(fold.placeAfter(1)).toBe(fold.length);
    expect(fold.seek(fold.placeAfter(0)).shownStep).toBe(0);
  });

  it("is over when its phase succeeds", () => {
    const fold = folded(...first, failed(1, "schedule"), scheduled(1, ["a"]), failed(1, "execute"));
    expect([fold.live.shownStep, fold.live.error]).toEqual([1, "IndexError: 7"]);
    fold.push(pack(executed(1, [[8]])));
    expect(fold.live.error).toBeNull();
    fold.push(pack(updated(1, ["a"])));
    expect([fold.live.shownStep, fold.live.step, fold.history.holes]).toEqual([1, 2, []]);
  });
});

describe("a rewind", () => {
  it("is a change where the run goes on, in a log that forgot what came after", () => {
    const rewind = { ...changed("rewind", { from_step: 3, to_step: 1 }), step: 1 };
    const first = [added("a", [1, 2, 3, 4]), scheduled(0, ["a"]), executed(0, [[7]]), updated(0, ["a"])];
    const fold = folded(...first, rewind, { ...changed("option", { max_num_seqs: 2 }), step: 1 }, scheduled(1, ["a"]));
    expect([fold.live.step, fold.live.phase, fold.history.end, fold.placeAfter(0)]).toEqual([1, "execute", 2, 4]);
    expect(fold.seek(fold.placeAfter(0)).step).toBe(1);
  });
});

describe("the prefix hits", () => {
  it("are totals", () => {
    const fold = folded(added("a", [1, 2, 3, 4]), scheduled(0, ["a"]), updated(0, ["a"], [1, 10, 4]), scheduled(1, ["a"]), updated(1, ["a"], [1, 10, 8]));
    expect([0, 1].map((step) => [fold.history.value("queries", step), fold.history.value("hits", step)])).toEqual([[10, 4], [20, 12]]);
  });
});
