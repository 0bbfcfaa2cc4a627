// The KV blocks: as a map, as a table, as the tree of their prefixes; the free queue, the legend.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { cellUnder, gridLayout } from "../core/layout";
import { counted } from "../core/words";
import { blockRequest } from "../draw/block_look";
import { MARGIN, drawBlocks } from "../draw/blocks";
import { FREE_HEIGHT, drawFree, freeShown, freeUnder } from "../draw/free";
import { BlockGrid } from "./block_grid";
import { BlockTable } from "./block_table";
import { BlockTip } from "./block_tip";
import type { Moment } from "./context";
import { Prefixes } from "./prefixes";
import { useDrawing, useSize } from "./use_canvas";

/** The free queue and the legend under the map. */
const BELOW = 122;

const LOOKS = { map: "One cell a block", table: "One line a block", prefixes: "The tree of prompts that begin alike, and where they part" };

export function Blocks({ moment }: { moment: Moment }): JSX.Element {
  const { store, state } = moment;
  const [look, setLook] = useState("map");
  const [body, size] = useSize<HTMLDivElement>();
  const room = Math.max(120, size.height - BELOW);
  const header = store.fold.header;
  const about = header ? `${counted(state.blocks.count, "block")} of ${header.block_size} tokens · block 0 reserved` : "";
  return (
    <section class="nbe-pane nbe-blocks" aria-label="KV blocks">
      <h3>
        KV blocks <small>{about}</small>
        <span class="nbe-spring" />
        <span class="nbe-zoom" role="group" aria-label="Show blocks as">
          {Object.entries(LOOKS).map(([name, title]) => (
            <button key={name} type="button" title={title} aria-pressed={look === name} onClick={() => setLook(name)}>{name}</button>
          ))}
        </span>
      </h3>
      <div class="nbe-block-body" ref={body}>
        {look === "map" && <BlockMap moment={moment} room={room} />}
        {look === "table" && <BlockTable moment={moment} height={room} />}
        {look === "prefixes" && <Prefixes moment={moment} height={room} />}
        <h3>
          Free queue <small>taken from the left; evicted in this order</small>
        </h3>
        <FreeQueue moment={moment} />
        <Legend />
      </div>
    </section>
  );
}

function BlockMap({ moment, room }: { moment: Moment; room: number }): JSX.Element {
  const { store, state, theme } = moment;
  const [box, size] = useSize<HTMLDivElement>();
  const count = state.blocks.count;
  const layout = gridLayout(count, size.width - 2 * MARGIN, room - 2 * MARGIN);
  const height = Math.max(layout.totalHeight + 2 * MARGIN, 10);
  const key = [store.version, theme, layout.width, layout.columns];
  const canvas = useDrawing(size.width, height, key, (g) =>
    drawBlocks(g, {
      state,
      layout,
      theme,
      blockSize: store.fold.header?.block_size ?? 16,
      id: (request) => store.fold.id(request),
      selected: store.selected,
      hovered: store.hovered,
      selectedBlock: store.selectedBlock,
      hoveredBlock: store.hoveredBlock,
      suspects: suspects(moment),
    }),
  );
  const under = (event: PointerEvent | MouseEvent): number => {
    const { left, top } = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return cellUnder(layout, count, event.clientX - left - MARGIN, event.clientY - top - MARGIN);
  };
  return (
    <div class="nbe-map" ref={box} style={{ height: `${Math.min(height, room)}px`, overflow: height > room ? "hidden auto" : "visible" }}>
      <div
        class="nbe-map-inner"
        style={{ height: `${height}px` }}
        onPointerMove={(event) => hover(moment, under(event))}
        onPointerLeave={() => hover(moment, -1)}
        onClick={(event) => choose(moment, under(event))}
      >
        <canvas ref={canvas} aria-hidden="true" />
        <BlockGrid moment={moment} layout={layout} />
        <BlockTip moment={moment} layout={layout} width={size.width} />
      </div>
    </div>
  );
}

/** A block lights up, and with it whoever holds it. */
export function hover({ store, state }: Moment, block: number): void {
  store.set("hoveredBlock", block);
  store.set("hovered", block > 0 ? blockRequest(state, block) : -1);
}

export function choose({ store, state }: Moment, block: number): void {
  if (block < 0) return;
  store.set("selectedBlock", store.selectedBlock === block ? -1 : block);
  const request = block > 0 ? blockRequest(state, block) : -1;
  if (request >= 0 && request !== store.selected) store.select(request);
}

const none: ReadonlySet<number> = new Set();

/** Blocks that a broken invariant names: "block 7 …". */
function suspects({ records }: Moment): ReadonlySet<number> {
  const texts = records.updated?.violations ?? [];
  if (!texts.length) return none;
  return new Set(texts.flatMap((text) => [...text.matchAll(/\bblocks? (\d+)/gi)].map((match) => Number(match[1]))));
}

function FreeQueue({ moment }: { moment: Moment }): JSX.Element {
  const { store, state, theme } = moment;
  const [box, size] = useSize<HTMLDivElement>();
  const queue = state.blocks.freeQueue(freeShown(state, size.width));
  const canvas = useDrawing(size.width, FREE_HEIGHT, [store.version, theme], (g) =>
    drawFree(g, {
      state,
      theme,
      width: size.width,
      id: (request) => store.fold.id(request),
      hovered: store.hovered,
      hoveredBlock: store.hoveredBlock,
    }),
  );
  const under = (event: MouseEvent): number => queue[freeUnder(state, event.offsetX)] ?? -1;
  return (
    <div
      class="nbe-free"
      ref={box}
      role="img"
      aria-label={queue.length ? `Free queue, next to go first: ${queue.join(", ")}` : "Free queue: empty"}
      onPointerMove={(event) => hover(moment, under(event))}
      onPointerLeave={() => hover(moment, -1)}
      onClick={(event) => choose(moment, under(event))}
    >
      <canvas ref={canvas} aria-hidden="true" />
    </div>
  );
}

function Legend(): JSX.Element {
  return (
    <p class="nbe-legend" aria-hidden="true">
      <span><i class="nbe-k-owned" />owned</span>
      <span><i class="nbe-k-shared" />shared (+ others)</span>
      <span><i class="nbe-k-cached" />cached, free</span>
      <span><i class="nbe-k-empty" />empty</span>
      <span><i class="nbe-k-touched" />touched this step</span>
    </p>
  );
}
