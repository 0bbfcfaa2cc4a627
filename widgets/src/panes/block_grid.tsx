// The block map for keyboards and screen readers: a grid over the canvas, of which only the rows around the focus are real.

import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { type GridLayout, cellAt } from "../core/layout";
import { MARGIN } from "../draw/blocks";
import { sayBlock } from "./block_words";
import { choose, hover } from "./blocks";
import type { Moment } from "./context";

const MOVES: Record<string, (block: number, columns: number, count: number) => number> = {
  ArrowRight: (block) => block + 1,
  ArrowLeft: (block) => block - 1,
  ArrowDown: (block, columns) => block + columns,
  ArrowUp: (block, columns) => block - columns,
  Home: (block, columns) => block - (block % columns),
  End: (block, columns) => block - (block % columns) + columns - 1,
  PageUp: () => 0,
  PageDown: (_block, _columns, count) => count - 1,
};

/** Of rows with more cells than this, only those near the focus are real. */
const WIDE = 40;

export function BlockGrid({ moment, layout }: { moment: Moment; layout: GridLayout }): JSX.Element {
  const { store, state } = moment;
  const { count } = state.blocks;
  const grid = useRef<HTMLDivElement>(null);
  const focused = useRef(0);
  const current = Math.min(focused.current, Math.max(0, count - 1));
  const row = Math.floor(current / layout.columns);
  const rows = [row - 1, row, row + 1].filter((at) => at >= 0 && at * layout.columns < count);
  const column = current % layout.columns;
  const [from, to] = layout.columns > WIDE ? [Math.max(0, column - 8), Math.min(layout.columns, column + 9)] : [0, layout.columns];
  const go = (block: number): void => {
    focused.current = Math.max(0, Math.min(count - 1, block));
    hover(moment, focused.current);
    store.changed();
    requestAnimationFrame(() => requestAnimationFrame(() => grid.current?.querySelector<HTMLElement>("[tabindex='0']")?.focus()));
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const move = MOVES[event.key];
    if (!move && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    if (move) go(move(current, layout.columns, count));
    else choose(moment, current);
  };
  return (
    <div
      class="nbe-grid-cells"
      role="grid"
      ref={grid}
      aria-label={`KV blocks, ${count} in ${layout.rows} rows`}
      aria-rowcount={layout.rows}
      aria-colcount={layout.columns}
      onKeyDown={onKeyDown}
    >
      {rows.map((at) => (
        <div key={at} role="row" aria-rowindex={at + 1}>
          {Array.from({ length: Math.max(0, Math.min(to, count - at * layout.columns) - from) }, (_, i) => {
            const block = at * layout.columns + from + i;
            const { x, y } = cellAt(layout, block);
            return (
              <div
                key={block}
                role="gridcell"
                tabIndex={block === current ? 0 : -1}
                aria-colindex={from + i + 1}
                aria-selected={block === store.selectedBlock}
                aria-label={block === current || layout.labels === 2 ? sayBlock(moment, block) : `block ${block}`}
                style={`left:${x + MARGIN}px;top:${y + MARGIN}px;width:${layout.width}px;height:${layout.height}px`}
                onFocus={() => {
                  focused.current = block;
                }}
              />
            );
          })}
        </div>
      ))}
    </div>
  );
}
