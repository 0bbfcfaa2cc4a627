// The prefix tree at a moment: which prompts go the same way block by block, and where they part.
//
// A block that is full has a hash that stands for it and all before it, so equal hashes are equal prefixes. Blocks that
// are not full yet belong to one request and end its branch.

import type { State } from "./state";

/** A run of blocks without a fork. */
export interface Branch {
  /** Block by block; of one content there may be several copies. */
  chain: number[][];
  /** Its first block's place in the prompts, from 0. */
  first: number;
  /** Requests whose block tables end here. */
  ends: number[];
  children: Branch[];
  /** What it continues is no longer cached: it cannot be found any more. */
  lost: boolean;
}

interface Node {
  blocks: number[];
  parent: number | undefined;
  children: Node[];
  ends: number[];
}

export function prefixTree(state: State): Branch[] {
  const nodes = hashed(state);
  for (const request of state.requests) {
    let before = -1;
    for (const block of request?.blockIds ?? []) {
      const key = state.blocks.hash[block] >= 0 ? state.blocks.hash[block] : -2 - block;
      if (!nodes.has(key)) nodes.set(key, { blocks: [block], parent: before, children: [], ends: [] });
      before = key;
    }
    if (request) nodes.get(before)?.ends.push(request.index);
  }
  const roots: Node[] = [];
  for (const node of nodes.values()) (nodes.get(node.parent ?? -1)?.children ?? roots).push(node);
  return roots.map((node) => branchOf(state, node, node.parent !== -1));
}

function hashed({ blocks }: State): Map<number, Node> {
  const nodes = new Map<number, Node>();
  for (let block = 1; block < blocks.count; block++) {
    const hash = blocks.hash[block];
    if (hash < 0) continue;
    const twin = nodes.get(hash);
    if (twin) twin.blocks.push(block);
    else nodes.set(hash, { blocks: [block], parent: blocks.parents.get(hash), children: [], ends: [] });
  }
  return nodes;
}

function branchOf(state: State, start: Node, lost = false): Branch {
  const chain = [start.blocks];
  let last = start;
  while (last.children.length === 1 && !last.ends.length) {
    last = last.children[0];
    chain.push(last.blocks);
  }
  const children = last.children.map((node) => branchOf(state, node));
  return { chain, first: state.blocks.place[start.blocks[0]], ends: last.ends, children, lost };
}

/** The first place at which these token lists differ. */
export function partAt(lists: number[][]): number {
  const shortest = Math.min(...lists.map((list) => list.length));
  for (let i = 0; i < shortest; i++) if (lists.some((list) => list[i] !== lists[0][i])) return i;
  return shortest;
}
