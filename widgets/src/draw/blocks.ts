// The KV block map: one cell a block. Big cells carry number, owner and fill; small ones only colour and outline.

import { NUM_COLORS } from "../core/colors";
import { type GridLayout, cellAt } from "../core/layout";
import type { State } from "../core/state";
import { blockFill, blockKind, blockRequest } from "./block_look";
import { fitText, roundRect } from "./surface";
import type { Theme } from "./theme";

export interface BlocksPicture {
  state: State;
  layout: GridLayout;
  theme: Theme;
  blockSize: number;
  id(request: number): string;
  selected: number; // a request
  hovered: number;
  selectedBlock: number;
  hoveredBlock: number;
  /** Blocks that a broken invariant names. */
  suspects: ReadonlySet<number>;
}

export const MARGIN = 5; // room for rings around the outer cells

export function drawBlocks(g: CanvasRenderingContext2D, picture: BlocksPicture): void {
  g.save();
  g.translate(MARGIN, MARGIN);
  if (picture.layout.width >= 14) drawLarge(g, picture);
  else drawSmall(g, picture);
  drawTable(g, picture);
  for (const block of [picture.hoveredBlock, picture.selectedBlock]) if (block >= 0) ring(g, picture, block, picture.theme.ink, 1.6);
  for (const block of picture.suspects) ring(g, picture, block, picture.theme.bad, 2.4);
  g.restore();
}

function drawLarge(g: CanvasRenderingContext2D, picture: BlocksPicture): void {
  const { state, layout, theme } = picture;
  const radius = Math.min(6, layout.width / 6);
  const step = state.shownStep;
  for (let block = 0; block < state.blocks.count; block++) {
    const { x, y } = cellAt(layout, block);
    const kind = blockKind(state, block);
    const request = blockRequest(state, block);
    const color = request >= 0 ? request % NUM_COLORS : -1;
    const dim = picture.hovered >= 0 && !holds(state, block, picture.hovered);
    g.globalAlpha = dim ? 0.3 : 1;
    shape(g, picture, kind, color, x, y, radius);
    if (layout.labels) label(g, picture, block, kind, request, x, y);
    g.globalAlpha = 1;
    if (step >= 0 && state.blocks.touched[block] === step) ring(g, picture, block, theme.phases.update, 2.2);
  }
}

function shape(g: CanvasRenderingContext2D, picture: BlocksPicture, kind: string, color: number, x: number, y: number, radius: number): void {
  const { theme, layout } = picture;
  const [w, h] = [layout.width, layout.height];
  roundRect(g, x, y, w, h, radius);
  if (kind === "null") {
    g.fillStyle = theme.bg1;
    g.fill();
    g.strokeStyle = theme.line;
    g.lineWidth = 1;
    g.stroke();
    g.strokeStyle = theme.ink3;
    g.beginPath();
    g.moveTo(x + w * 0.14, y + h * 0.14);
    g.lineTo(x + w * 0.86, y + h * 0.86);
    g.moveTo(x + w * 0.86, y + h * 0.14);
    g.lineTo(x + w * 0.14, y + h * 0.86);
    g.stroke();
  } else if (kind === "empty" || color < 0) {
    g.fillStyle = theme.bg2;
    g.fill();
  } else if (kind === "cached") {
    roundRect(g, x + 0.8, y + 0.8, w - 1.6, h - 1.6, radius);
    g.fillStyle = theme.tints[color];
    g.fill();
    g.setLineDash(w >= 28 ? [4, 3] : [2, 2]);
    g.strokeStyle = theme.colors[color];
    g.lineWidth = 1.6;
    g.stroke();
    g.setLineDash([]);
  } else {
    g.fillStyle = theme.fills[color];
    g.fill();
    if (kind === "shared") {
      const inset = w >= 28 ? 3 : 2;
      roundRect(g, x + inset, y + inset, w - 2 * inset, h - 2 * inset, Math.max(1, radius - 2));
      g.strokeStyle = theme.bg;
      g.lineWidth = w >= 28 ? 2 : 1.2;
      g.stroke();
    }
  }
}

function label(g: CanvasRenderingContext2D, picture: BlocksPicture, block: number, kind: string, request: number, x: number, y: number): void {
  const { theme, layout, state } = picture;
  const solid = kind === "used" || kind === "shared";
  const ink = solid ? theme.inks[request % NUM_COLORS] : theme.ink2;
  const pad = layout.width >= 44 ? 8 : 4;
  g.fillStyle = ink;
  g.font = `600 ${layout.labels === 2 ? 12 : 9.5}px ${theme.mono}`;
  if (kind !== "null" || layout.labels < 2) g.fillText(String(block), x + pad, y + (layout.labels === 2 ? 18 : 11));
  else g.fillText("0", x + pad, y + 18);
  if (request < 0 || kind === "null") return;
  if (layout.labels === 2) {
    g.font = `11px ${theme.mono}`;
    const others = kind === "shared" ? ` +${state.blocks.refs[block] - 1}` : "";
    const id = fitText(g, picture.id(request), layout.width - 2 * pad + 2 - g.measureText(others).width);
    g.fillText(id + others, x + pad, y + 34);
  }
  const [w, thick] = [layout.width - 2 * pad, layout.labels === 2 ? 3 : 2];
  const bottom = y + layout.height - (layout.labels === 2 ? 11 : 6);
  const base = g.globalAlpha;
  g.fillStyle = solid ? ink : theme.colors[request % NUM_COLORS];
  g.globalAlpha = base * 0.32;
  g.fillRect(x + pad, bottom, w, thick);
  g.globalAlpha = base * 0.95;
  g.fillRect(x + pad, bottom, w * blockFill(state, block, picture.blockSize), thick);
  g.globalAlpha = base;
}

/** Ten thousand cells: no text, no curves, one fill style at a time. */
function drawSmall(g: CanvasRenderingContext2D, picture: BlocksPicture): void {
  const { state, layout, theme } = picture;
  const { blocks } = state;
  const { width: size } = layout;
  const groups: number[][] = Array.from({ length: NUM_COLORS * 2 + 1 }, () => []);
  for (let block = 1; block < blocks.count; block++) {
    const owner = blocks.owner[block];
    if (owner >= 0) groups[owner % NUM_COLORS].push(block);
    else if (blocks.hash[block] >= 0 && blocks.lastOwner[block] >= 0) groups[NUM_COLORS + (blocks.lastOwner[block] % NUM_COLORS)].push(block);
    else groups[NUM_COLORS * 2].push(block);
  }
  const each = (list: number[], paint: (x: number, y: number, block: number) => void): void => {
    const [stepX, stepY] = [size + layout.gap, layout.height + layout.gap];
    for (const block of list) paint((block % layout.columns) * stepX, Math.floor(block / layout.columns) * stepY, block);
  };
  g.fillStyle = theme.bg2;
  each(groups[NUM_COLORS * 2], (x, y) => g.fillRect(x, y, size, size));
  for (let color = 0; color < NUM_COLORS; color++) {
    g.fillStyle = theme.fills[color];
    each(groups[color], (x, y) => g.fillRect(x, y, size, size));
    g.fillStyle = theme.tints[color];
    each(groups[NUM_COLORS + color], (x, y) => g.fillRect(x, y, size, size));
    g.fillStyle = theme.colors[color];
    each(groups[NUM_COLORS + color], (x, y) => g.fillRect(x, y + size - 1, size, 1));
  }
  if (size >= 5) {
    g.fillStyle = theme.bg;
    for (const block of blocks.others.keys()) {
      const { x, y } = cellAt(layout, block);
      g.fillRect(x + size / 2 - 1, y + size / 2 - 1, 2, 2);
    }
  }
  g.fillStyle = theme.ink3;
  g.fillRect(0, 0, size, size);
  markSmall(g, picture);
}

function markSmall(g: CanvasRenderingContext2D, picture: BlocksPicture): void {
  const { state, layout, theme } = picture;
  const { blocks } = state;
  const step = state.shownStep;
  g.strokeStyle = theme.phases.update;
  g.lineWidth = 1;
  g.beginPath();
  for (let block = 1; step >= 0 && block < blocks.count; block++) {
    if (blocks.touched[block] !== step) continue;
    const { x, y } = cellAt(layout, block);
    g.rect(x - 0.5, y - 0.5, layout.width + 1, layout.height + 1);
  }
  g.stroke();
  if (picture.hovered < 0) return;
  g.fillStyle = theme.ink;
  for (const block of state.request(picture.hovered)?.blockIds ?? []) {
    const { x, y } = cellAt(layout, block);
    g.fillRect(x, y, layout.width, layout.height);
  }
}

/** The selected request's block table, as a dotted path through its blocks in order. */
function drawTable(g: CanvasRenderingContext2D, picture: BlocksPicture): void {
  const table = state(picture).request(picture.selected)?.blockIds ?? [];
  if (!table.length) return;
  const { layout, theme } = picture;
  const points = table.map((block) => {
    const { x, y } = cellAt(layout, block);
    return { x: x + layout.width * 0.8, y: y + layout.height * 0.64 };
  });
  g.strokeStyle = theme.ink;
  g.fillStyle = theme.ink;
  g.lineWidth = layout.width >= 14 ? 1.6 : 1;
  g.setLineDash([2, 3]);
  g.beginPath();
  points.forEach(({ x, y }, i) => (i ? g.lineTo(x, y) : g.moveTo(x, y)));
  g.stroke();
  g.setLineDash([]);
  const ends = points.length > 1 ? [points[0], points[points.length - 1]] : points;
  ends.forEach(({ x, y }, i) => {
    g.beginPath();
    g.arc(x, y, layout.width >= 14 ? 3 : 2, 0, 7);
    if (i) g.fill();
    else {
      g.fillStyle = theme.bg;
      g.fill();
      g.stroke();
      g.fillStyle = theme.ink;
    }
  });
}

function state(picture: BlocksPicture): State {
  return picture.state;
}

function holds(at: State, block: number, request: number): boolean {
  const { blocks } = at;
  if (blocks.owner[block] === request) return true;
  if (blocks.owner[block] < 0) return blocks.hash[block] >= 0 && blocks.lastOwner[block] === request;
  return blocks.others.get(block)?.includes(request) ?? false;
}

function ring(g: CanvasRenderingContext2D, picture: BlocksPicture, block: number, color: string, width: number): void {
  const { layout } = picture;
  const { x, y } = cellAt(layout, block);
  const out = layout.gap >= 5 ? 3 : 1.5;
  roundRect(g, x - out, y - out, layout.width + 2 * out, layout.height + 2 * out, Math.min(8, layout.width / 5));
  g.strokeStyle = color;
  g.lineWidth = Math.min(width, layout.gap >= 3 ? width : 1.4);
  g.stroke();
}
