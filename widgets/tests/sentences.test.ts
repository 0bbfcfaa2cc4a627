import { describe, expect, it } from "vitest";
import type { Decision, Scheduled } from "../src/core/records";
import { sayDecision, sayStep } from "../src/core/sentences";
import { preemptions, tellPreemption } from "../src/core/story";

const cases: [Decision, string, string, boolean][] = [
  [["r4", "decode", { tokens: 1 }], "1 token", "decode", false],
  [["r8", "prefill", { tokens: 29, remaining: 60, chunked: 1 }], "29 tokens", "prefill chunk, 60 prompt tokens to go", false],
  [["r8", "prefill", { tokens: 9, remaining: 0, chunked: 0 }], "9 tokens", "prefill, its last chunk", false],
  [["r2", "admitted", { tokens: 18, hit: 32, remaining: 0, chunked: 0 }], "18 tokens", "admitted, 32 tokens found in the prefix cache", false],
  [["r7", "resumed", { tokens: 5, hit: 0, remaining: 1, chunked: 1 }], "5 tokens", "resumed after its preemption, 1 prompt token to go", false],
  [["r9", "no_blocks", { needs: 8, free: 3, watermark: 2 }], "–", "needs 8 blocks, 3 free and 2 are kept back", true],
  [["r9", "reserve", { needs: 8, free: 3, watermark: 0 }], "–", "its whole sequence needs 8 blocks, 3 free", true],
  [["r9", "budget", { budget: 32, used: 32 }], "–", "the token budget of 32 was spent before it", true],
  [["r9", "max_num_seqs", { running: 4, limit: 4 }], "–", "4 requests run already, the limit is 4", true],
  [["r9", "admission_off", {}, "r7"], "–", "not looked at: a preemption (r7) ends admission", true],
  [["r9", "behind", {}, "r7"], "–", "behind r7", true],
  [["r9", "no_need", {}], "–", "nothing to compute now", false],
  [["r9", "some_new_verdict", {}], "–", "some new verdict", true],
];

it.each(cases)("%j", (decision, got, text, refused) => {
  expect(sayDecision(decision)).toEqual({ got, text, refused });
});

it("names the blocks that a request took", () => {
  expect(sayDecision(["r5", "decode", { tokens: 1 }], [22]).text).toBe("decode, took block 22");
});

const scheduled: Scheduled = {
  t: "scheduled", step: 41, at: 1, schedule_s: 0.001,
  request_ids: ["r4", "r5", "r8"], tokens: [1, 1, 29], computed: [87, 80, 58], preempted: ["r7"],
  decisions: [
    ["r4", "decode", { tokens: 1 }],
    ["r7", "preempted", { needs: 1, free: 0, computed: 74, freed: 5 }, "r5", 212, "nbengine/scheduler/scheduler.py"],
    ["r5", "decode", { tokens: 1 }],
    ["r8", "prefill", { tokens: 29, remaining: 12, chunked: 1 }],
    ["r9", "admission_off", {}, "r7"],
  ],
  block_ops: [["b", 25, "r7"], ["b", 24, "r7"], ["b", 23, "r7"], ["f", 22, "r7"], ["f", 26, "r7"], ["a", 22, "r5"]],
};

describe("the story of a preemption", () => {
  it("tells who needed what, who paid, and what became of the blocks", () => {
    const [decision] = preemptions(scheduled);
    const story = tellPreemption(decision, scheduled, { policy: "fcfs", blockSize: 16, place: 0 });
    expect(story.title).toBe("r7 lost its place in step 41");
    expect(story.lines).toEqual([
      "r5 needed **1 block** for its 81st token; **0 were free**.",
      "Policy fcfs takes the last of the running queue: **r7**.",
      "Its 5 blocks went back: 3 keep their hash and can be hit again, 2 were bare and are next to be taken.",
      "**r5 took block 22.**",
    ]);
    expect(story.facts).toEqual([
      ["computed before", "74 tokens"],
      ["to recompute", "26 if nothing is evicted, at most 74"],
      ["now", "first in the waiting queue"],
    ]);
    expect([story.file, story.line]).toEqual(["nbengine/scheduler/scheduler.py", 212]);
  });

  it("counts what is lost already, and what others keep", () => {
    const ops: Scheduled["block_ops"] = [["d", 1, "r7"], ["b", 25, "r7"], ["b", 24, "r7"], ["e", 25, "r7"], ["a", 25, "r5"]];
    const [decision] = preemptions(scheduled);
    const numbers = { ...decision[2], computed: 48, freed: 2 };
    const story = tellPreemption(["r7", "preempted", numbers, "r5"], { ...scheduled, block_ops: ops }, { policy: "fcfs", blockSize: 16, place: 0 });
    expect(story.lines[2]).toBe("Its 2 blocks went back: 2 keep their hash and can be hit again. 1 more stays with others that share it.");
    expect(story.facts[1]).toEqual(["to recompute", "16 if nothing more is evicted, at most 48"]);
  });

  it("tells it of one that was its own victim", () => {
    const decision: Decision = ["r5", "self_preempted", { needs: 2, free: 1, computed: 80, freed: 5 }];
    const story = tellPreemption(decision, scheduled, { policy: "priority", blockSize: 16, place: -1 });
    expect(story.lines[0]).toContain("r5 needed **2 blocks** for its 81st token; **1 was free**.");
    expect(story.lines[1]).toBe("Policy priority takes the least urgent of the running queue, and that was **r5 itself**.");
  });

  it("names the rule if it is a person's own", () => {
    const decision: Decision = ["r7", "preempted", { needs: 1, free: 0, computed: 80, freed: 5 }, "r5", 12, "cell.py", "Mine.choose_victim"];
    const story = tellPreemption(decision, scheduled, { policy: "fcfs", blockSize: 16, place: -1 });
    expect(story.lines[1]).toBe("Mine.choose_victim chose **r7**.");
  });
});

it("says a step in one sentence", () => {
  expect(sayStep(41, scheduled, undefined)).toBe("Step 41: decoded 2, prefilled 1, preempted r7.");
  expect(sayStep(0, undefined, undefined)).toBe("Step 0: nothing scheduled yet.");
});
