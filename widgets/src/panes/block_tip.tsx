// What a block is, beside the pointer.

import type { JSX } from "preact";
import { type GridLayout, cellAt } from "../core/layout";
import { MARGIN } from "../draw/blocks";
import { blockFacts } from "./block_words";
import type { Moment } from "./context";

const WIDTH = 250;

export function BlockTip({ moment, layout, width }: { moment: Moment; layout: GridLayout; width: number }): JSX.Element | null {
  const block = moment.store.hoveredBlock;
  if (block < 0 || block >= moment.state.blocks.count) return null;
  const facts = blockFacts(moment, block);
  const { x, y } = cellAt(layout, block);
  const size = moment.store.fold.header?.block_size ?? 16;
  const left = Math.max(0, Math.min(width - WIDTH - 4, x + MARGIN - 20));
  const place = moment.state.blocks.place[block];
  return (
    <div class="nbe-tip" role="tooltip" style={`left:${left}px;top:${y + MARGIN + layout.height + 8}px;max-width:${WIDTH}px`}>
      <b>block {block}</b> <span class="nbe-quiet">{facts.state}</span>
      {facts.owners.length > 0 && (
        <div>
          {facts.refs > 1 && `${facts.refs} references: `}{facts.owners.join(", ")} · {facts.filled}/{size} tokens · entry {place} of {facts.refs > 1 ? "their tables" : "its table"}
        </div>
      )}
      {facts.last && <div>last held by {facts.last}</div>}
      {facts.hash && (
        <div>
          hash <span class="nbe-mono">{facts.hash.slice(0, 12)}</span>
        </div>
      )}
      {facts.text && <div class="nbe-tip-text">{facts.text.trim()}</div>}
    </div>
  );
}
