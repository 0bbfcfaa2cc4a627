// The free queue as a strip: taken from the left; what stands at the left is next to go.

import { NUM_COLORS } from "../core/colors";
import type { State } from "../core/state";
import { grouped } from "../core/words";
import { type Label, drawLabels, fitMono, monoWidth, roundRect } from "./surface";
import type { Theme } from "./theme";

export const FREE_HEIGHT = 56;
const GAP = 14;
const HEIGHT = 31;

/** Wide enough for a block's number and a short id. */
function cellWidth(state: State): number {
  return state.blocks.count > 999 ? 86 : 62;
}

export function freeShown(state: State, width: number): number {
  return Math.max(1, Math.floor((width - 44) / (cellWidth(state) + GAP)));
}

export function freeUnder(state: State, x: number): number {
  const step = cellWidth(state) + GAP;
  const index = Math.floor(x / step);
  return x - index * step <= step - GAP ? index : -1;
}

export interface FreePicture {
  state: State;
  theme: Theme;
  width: number;
  id(request: number): string;
  hovered: number;
  hoveredBlock: number;
}

export function drawFree(g: CanvasRenderingContext2D, picture: FreePicture): void {
  const { state, theme } = picture;
  const queue = state.blocks.freeQueue(freeShown(state, picture.width));
  const step = cellWidth(state) + GAP;
  const [number, owner, small] = [`600 12px ${theme.mono}`, `11px ${theme.mono}`, `11px ${theme.ui}`];
  const said: Label[] = [];
  const say = (text: string, x: number, y: number, color: string): void => void said.push({ text, x, y, color, alpha: 1 });
  if (!queue.length) say("empty: the next request that needs a block preempts another", 2, 22, theme.warn);
  else say("next to go", 2, 50, theme.warn);
  const rest = state.blocks.numFree - queue.length;
  if (rest > 0) say(`+${grouped(rest)}`, queue.length * step + 2, 23, theme.ink2);
  const numbers: Label[] = [];
  const owners: Label[] = [];
  const widths: [number, number] = [monoWidth(g, number), monoWidth(g, owner)];
  queue.forEach((block, i) => {
    drawCell(g, picture, block, i * step + 1);
    labelCell(picture, block, i * step + 1, widths, numbers, owners);
    if (i < queue.length - 1) say("›", (i + 1) * step - GAP + 5, 23, theme.ink3);
  });
  drawLabels(g, number, numbers);
  drawLabels(g, owner, owners);
  drawLabels(g, small, said);
}

function drawCell(g: CanvasRenderingContext2D, picture: FreePicture, block: number, x: number): void {
  const { state, theme } = picture;
  const [cached, request] = holder(state, block);
  const width = cellWidth(state);
  g.globalAlpha = dimmed(picture, request);
  roundRect(g, x, 3, width, HEIGHT, 6);
  if (cached) {
    g.setLineDash([4, 3]);
    g.strokeStyle = request >= 0 ? theme.colors[request % NUM_COLORS] : theme.ink3;
    g.lineWidth = 1.5;
    g.stroke();
    g.setLineDash([]);
  } else {
    g.fillStyle = theme.bg2;
    g.fill();
  }
  g.globalAlpha = 1;
  if (block !== picture.hoveredBlock) return;
  roundRect(g, x - 0.5, 2.5, width + 1, HEIGHT + 1, 6);
  g.strokeStyle = theme.ink;
  g.lineWidth = 1.5;
  g.stroke();
}

function labelCell(picture: FreePicture, block: number, x: number, each: [number, number], numbers: Label[], owners: Label[]): void {
  const { state, theme } = picture;
  const [, request] = holder(state, block);
  const alpha = dimmed(picture, request);
  const text = String(block);
  numbers.push({ text, x: x + 8, y: 23, color: theme.ink2, alpha });
  if (request < 0) return;
  const used = text.length * each[0] + 14;
  owners.push({ text: fitMono(picture.id(request), cellWidth(state) - used - 5, each[1]), x: x + used, y: 23, color: theme.ink2, alpha });
}

function holder(state: State, block: number): [boolean, number] {
  const cached = state.blocks.hash[block] >= 0;
  return [cached, cached ? state.blocks.lastOwner[block] : -1];
}

function dimmed({ hovered }: FreePicture, request: number): number {
  return hovered >= 0 && hovered !== request ? 0.35 : 1;
}
