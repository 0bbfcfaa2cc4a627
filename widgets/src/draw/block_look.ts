// What a block looks like at a moment, told from the state: shared by the map, the free queue, the table and the tooltips.

import type { State } from "../core/state";

export type BlockKind = "null" | "empty" | "cached" | "used" | "shared";

export function blockKind(state: State, block: number): BlockKind {
  const { blocks } = state;
  if (block === 0) return "null";
  if (blocks.refs[block] > 1) return "shared";
  if (blocks.refs[block] === 1) return "used";
  return blocks.hash[block] >= 0 ? "cached" : "empty";
}

/** Whose colour a block has: its owner's, or that of the last one if it is cached and free; -1 for none. */
export function blockRequest(state: State, block: number): number {
  const owner = state.blocks.owner[block];
  if (owner >= 0) return owner;
  return state.blocks.hash[block] >= 0 ? state.blocks.lastOwner[block] : -1;
}

/** How much of a block is computed, 0 … 1. */
export function blockFill(state: State, block: number, blockSize: number): number {
  const owner = state.blocks.owner[block];
  if (owner < 0) return state.blocks.hash[block] >= 0 ? 1 : 0;
  const request = state.request(owner);
  if (!request || state.blocks.refs[block] > 1) return 1;
  const computed = request.computed - state.blocks.place[block] * blockSize;
  return Math.max(0, Math.min(1, computed / blockSize));
}

/** The tokens that a block holds, of the request it was last given to, as far as that is known. */
export function blockTokens(state: State, block: number, blockSize: number): number[] {
  const request = state.request(blockRequest(state, block));
  if (!request) return [];
  const from = state.blocks.place[block] * blockSize;
  const to = Math.min(from + blockSize, request.status === "running" ? request.computed : request.numTokens);
  return request.tokens.slice(from, Math.max(from, to));
}
