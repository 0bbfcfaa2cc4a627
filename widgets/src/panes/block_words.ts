// A block in words: for screen readers, tooltips and the table.

import { blockFill, blockKind, blockTokens } from "../draw/block_look";
import type { Moment } from "./context";

export interface BlockFacts {
  state: string;
  owners: string[];
  last: string;
  hash: string;
  refs: number;
  filled: number;
  text: string;
}

const KINDS = { null: "reserved", empty: "empty", cached: "cached, free", used: "in use", shared: "shared" } as const;

export function blockFacts({ store, state }: Moment, block: number): BlockFacts {
  const { fold } = store;
  const size = fold.header?.block_size ?? 16;
  const { blocks } = state;
  const kind = blockKind(state, block);
  return {
    state: KINDS[kind],
    owners: blocks.owners(block).map((request) => fold.id(request)),
    last: kind === "cached" ? fold.id(blocks.lastOwner[block]) : "",
    hash: blocks.hash[block] >= 0 ? fold.tables.hashes.list[blocks.hash[block]] : "",
    refs: blocks.refs[block],
    filled: Math.round(blockFill(state, block, size) * size),
    text: kind === "null" || kind === "empty" ? "" : blockTokens(state, block, size).map((token) => fold.text(token)).join(""),
  };
}

export function sayBlock(moment: Moment, block: number): string {
  const facts = blockFacts(moment, block);
  const parts = [`block ${block}`, facts.state];
  if (facts.owners.length) parts.push(`held by ${facts.owners.join(" and ")}`, `${facts.filled} tokens`);
  if (facts.refs > 1) parts.push(`${facts.refs} references`);
  if (facts.last) parts.push(`last held by ${facts.last}`);
  if (facts.hash) parts.push(`hash ${facts.hash.slice(0, 8)}`);
  if (moment.state.blocks.touched[block] === moment.state.shownStep && block > 0) parts.push("touched this step");
  return parts.join(", ");
}
