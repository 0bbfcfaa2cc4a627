// The free queue as a strip: taken from the left; what stands at the left is next to go.

import { NUM_COLORS } from "../core/colors";
import type { State } from "../core/state";
import { fitText, roundRect } from "./surface";
import type { Theme } from "./theme";

export const FREE_HEIGHT = 56;
const WIDTH = 62;
const STEP = 76;

export function freeShown(width: number): number {
  return Math.max(1, Math.floor((width - 40) / STEP));
}

export function freeUnder(x: number): number {
  const index = Math.floor(x / STEP);
  return x - index * STEP <= WIDTH ? index : -1;
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
  const queue = state.blocks.freeQueue(freeShown(picture.width));
  g.textBaseline = "alphabetic";
  if (!queue.length) {
    g.fillStyle = theme.warn;
    g.font = `12px ${theme.ui}`;
    g.fillText("empty: the next request that needs a block preempts another", 2, 22);
    return;
  }
  queue.forEach((block, i) => drawOne(g, picture, block, i));
  const rest = state.blocks.numFree - queue.length;
  g.fillStyle = theme.ink2;
  g.font = `11px ${theme.ui}`;
  if (rest > 0) g.fillText(`+${rest.toLocaleString("en")}`, queue.length * STEP + 2, 23);
  g.fillStyle = theme.warn;
  g.fillText("next to go", 2, 50);
}

function drawOne(g: CanvasRenderingContext2D, picture: FreePicture, block: number, i: number): void {
  const { state, theme } = picture;
  const cached = state.blocks.hash[block] >= 0;
  const request = cached ? state.blocks.lastOwner[block] : -1;
  const x = i * STEP + 1;
  g.globalAlpha = picture.hovered >= 0 && picture.hovered !== request ? 0.35 : 1;
  roundRect(g, x, 3, WIDTH, 31, 6);
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
  g.fillStyle = theme.ink2;
  g.font = `600 12px ${theme.mono}`;
  g.fillText(String(block), x + 8, 23);
  if (request >= 0) {
    const used = g.measureText(String(block)).width + 14;
    g.font = `11px ${theme.mono}`;
    g.fillText(fitText(g, picture.id(request), WIDTH - used - 6), x + used, 23);
  }
  g.globalAlpha = 1;
  if (block === picture.hoveredBlock) {
    roundRect(g, x - 0.5, 2.5, WIDTH + 1, 32, 6);
    g.strokeStyle = theme.ink;
    g.lineWidth = 1.5;
    g.stroke();
  }
  g.fillStyle = theme.ink3;
  g.font = `13px ${theme.ui}`;
  g.fillText("›", x + WIDTH + 4, 23);
}
