import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { Fold } from "../src/core/fold";
import { type Branch, partAt, prefixTree } from "../src/core/prefixes";
import { blockTokens } from "../src/draw/block_look";
import { bytesOfBase64 } from "../src/host/bytes";

const story = JSON.parse(readFileSync(new URL("fixtures/story.json", import.meta.url), "utf8")) as { records: string[] };
const fold = new Fold();
for (const record of story.records) fold.push(bytesOfBase64(record));

function at(step: number): { roots: Branch[]; state: ReturnType<Fold["seek"]> } {
  const state = fold.seek(fold.placeAfter(step));
  return { roots: prefixTree(state), state };
}

const inside = (branch: Branch): number[] => [...branch.chain.flat(), ...branch.children.flatMap(inside)];

describe("the prefix tree", () => {
  it("holds every block with content once", () => {
    for (let step = 0; step < 42; step += 3) {
      const { roots, state } = at(step);
      const held = Array.from({ length: state.blocks.count }, (_, block) => block).filter((b) => b && (state.blocks.refs[b] || state.blocks.hash[b] >= 0));
      expect(roots.flatMap(inside).sort((a, b) => a - b)).toEqual(held);
    }
  });

  it("forks exactly where the prompts part", () => {
    const { roots, state } = at(12);
    const fork = roots.find((branch) => branch.children.length > 1)!;
    const shared = fork.chain.flat();
    const parted = fork.children.map((child) => child.chain[0][0]);
    expect(shared.every((block) => state.blocks.refs[block] === fork.children.length)).toBe(true);
    const size = fold.header!.block_size;
    const prompts = fork.children.map((child) => state.request(child.ends[0])!.tokens);
    expect(partAt(prompts)).toBe(shared.length * size + partAt(parted.map((block) => blockTokens(state, block, size))));
    for (const [i, child] of fork.children.entries()) expect(state.request(child.ends[0])!.blockIds.slice(0, 3)).toEqual([...shared, parted[i]]);
  });

  it("knows from the block operations alone what each hash continues", () => {
    const fresh = new Fold();
    for (const record of story.records.map(bytesOfBase64)) {
      if (new TextDecoder("latin1").decode(record.subarray(0, 16)).includes("keyframe")) break;
      fresh.push(record);
    }
    const { blocks, requests } = fresh.live;
    const tables = requests.flatMap((request) => (request && request.blockIds.length > 1 ? [request.blockIds] : []));
    expect(tables.length).toBeGreaterThan(2);
    for (const table of tables) {
      const hashes = table.map((block) => blocks.hash[block]).filter((hash) => hash >= 0);
      expect(hashes.map((hash) => blocks.parents.get(hash))).toEqual([-1, ...hashes.slice(0, -1)]);
    }
  });

  it("says of a rest whose beginning was evicted that it cannot be found", () => {
    const { roots } = at(12);
    expect(roots.some((branch) => branch.lost)).toBe(false);
    const state = fold.seek(fold.placeAfter(12));
    const fork = prefixTree(state).find((branch) => branch.children.length > 1)!;
    const [first] = fork.chain[0];
    const hash = state.blocks.hash[first];
    state.blocks.hash[first] = -1;
    for (const request of state.requests) if (request?.blockIds[0] === first) request.blockIds = [];
    expect(prefixTree(state).filter((branch) => branch.lost).flatMap(inside)).toContain(fork.chain[1][0]);
    state.blocks.hash[first] = hash;
  });

  it("parts lists at the first place that differs", () => {
    expect([partAt([[1, 2], [1, 3]]), partAt([[1, 2], [1]]), partAt([[], [1]])]).toEqual([1, 1, 0]);
  });
});
