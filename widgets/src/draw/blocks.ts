// The KV block map: one cell a block. Big cells carry number, owner and fill; small ones only colour and outline.

import { NUM_COLORS } from "../core/colors";
import { type GridLayout, cellAt } from "../core/layout";
import type { State } from "../core/state";
import { blockFill, blockKind, blockRequest } from "./block_look";
import { drawSmall } from "./small_blocks";
import { type Label, drawLabels, fitMono, monoWidth, roundRect } from "./surface";
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
  const small = picture.layout.width < 14;
  if (small) drawSmall(g, picture, MARGIN);
  g.save();
  g.translate(MARGIN, MARGIN);
  if (small) drawTable(g, picture);
  else drawLarge(g, picture);
  for (const block of [picture.hoveredBlock, picture.selectedBlock]) if (block >= 0) ring(g, picture, block, picture.theme.ink, 1.6);
  for (const block of picture.suspects) ring(g, picture, block, picture.theme.bad, 2.4);
  g.restore();
}

function drawLarge(g: CanvasRenderingContext2D, picture: BlocksPicture): void {
  const { state, layout, theme } = picture;
  const radius = Math.min(6, layout.width / 6);
  const step = state.shownStep;
  const text = labelFonts(g, picture);
  for (let block = 0; block < state.blocks.count; block++) {
    const { x, y } = cellAt(layout, block);
    const kind = blockKind(state, block);
    const request = blockRequest(state, block);
    const color = request >= 0 ? request % NUM_COLORS : -1;
    const dim = picture.hovered >= 0 && !holds(state, block, picture.hovered);
    g.globalAlpha = dim ? 0.42 : 1;
    shape(g, picture, kind, color, x, y, radius);
    if (layout.labels) label(g, picture, text, block, kind, request, x, y);
    g.globalAlpha = 1;
    if (step >= 0 && state.blocks.touched[block] === step) ring(g, picture, block, theme.phases.update, 2.2);
  }
  drawTable(g, picture); // under the labels
  labelEntries(picture, text);
  drawLabels(g, text.numberFont, text.numbers);
  drawLabels(g, text.ownerFont, text.owners);
}

interface LabelFonts {
  numberFont: string;
  ownerFont: string;
  each: number; // width of a character in ownerFont
  numbers: Label[];
  owners: Label[];
}

function labelFonts(g: CanvasRenderingContext2D, { layout, theme }: BlocksPicture): LabelFonts {
  const numberFont = `600 ${layout.labels === 2 ? 12 : 9.5}px ${theme.mono}`;
  const ownerFont = `11px ${theme.mono}`;
  return { numberFont, ownerFont, each: layout.labels === 2 ? monoWidth(g, ownerFont) : 0, numbers: [], owners: [] };
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

function label(g: CanvasRenderingContext2D, picture: BlocksPicture, text: LabelFonts, block: number, kind: string, request: number, x: number, y: number): void {
  const { theme, layout, state } = picture;
  const solid = kind === "used" || kind === "shared";
  const color = solid ? theme.inks[request % NUM_COLORS] : theme.ink2;
  const pad = layout.width >= 44 ? 8 : 4;
  const line = layout.labels === 2 ? Math.min(18, layout.height * 0.32) : 11;
  const alpha = g.globalAlpha;
  text.numbers.push({ text: String(block), x: x + pad, y: y + line, color, alpha });
  if (request < 0 || kind === "null") return;
  if (layout.labels === 2) {
    const others = kind === "shared" ? ` +${state.blocks.refs[block] - 1}` : "";
    const id = fitMono(picture.id(request), layout.width - 2 * pad + 2 - others.length * text.each, text.each);
    text.owners.push({ text: id + others, x: x + pad, y: y + line + Math.min(16, layout.height * 0.28), color, alpha });
  }
  const [w, thick] = [layout.width - 2 * pad, layout.labels === 2 ? 3 : 2];
  const bottom = y + layout.height - (layout.labels === 2 ? Math.min(11, layout.height * 0.19) : 6);
  const base = g.globalAlpha;
  g.fillStyle = solid ? color : theme.colors[request % NUM_COLORS];
  g.globalAlpha = base * 0.32;
  g.fillRect(x + pad, bottom, w, thick);
  g.globalAlpha = base * 0.95;
  g.fillRect(x + pad, bottom, w * blockFill(state, block, picture.blockSize), thick);
  g.globalAlpha = base;
}

/** On the selected request's blocks: which entry of its table each is. */
function labelEntries(picture: BlocksPicture, text: LabelFonts): void {
  const { layout, theme } = picture;
  if (layout.width < 56) return;
  const table = picture.state.request(picture.selected)?.blockIds ?? [];
  table.forEach((block, entry) => {
    const { x, y } = cellAt(layout, block);
    const said = `[${entry}]`;
    const color = theme.inks[blockRequest(picture.state, block) % NUM_COLORS];
    text.owners.push({ text: said, x: x + layout.width - 7 - said.length * text.each, y: y + Math.min(18, layout.height * 0.32), color, alpha: 1 });
  });
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
