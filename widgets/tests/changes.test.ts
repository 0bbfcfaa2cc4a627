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
const keyframe = (step: number, running: string[]) => ({
  t: "keyframe", step, at: step, phase: "schedule", running, waiting: [], finished: [], hashes: Array(9).fill(null), owners: Array(9).fill([]),
  free_queue: [1, 2, 3, 4, 5, 6, 7, 8],
  requests: running.map((request_id) => ({
    request_id, status: "running", token_ids: [1, 2, 3, 4, 7], num_prompt_tokens: 4, num_computed_tokens: 4, max_tokens: 9, block_ids: [],
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

describe("the prefix hits", () => {
  it("are totals", () => {
    const fold = folded(added("a", [1, 2, 3, 4]), scheduled(0, ["a"]), updated(0, ["a"], [1, 10, 4]), scheduled(1, ["a"]), updated(1, ["a"], [1, 10, 8]));
    expect([0, 1].map((step) => [fold.history.value("queries", step), fold.history.value("hits", step)])).toEqual([[10, 4], [20, 12]]);
  });
});
