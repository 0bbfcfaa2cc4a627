// The block map when cells are a few pixels: ten thousand of them are written as pixels, which is ten times as fast as
// filling rectangles. Colour is the owner, a pale cell with a foot is cached and free, a notch is shared.

import { NUM_COLORS, parseColor } from "../core/colors";
import { cellAt } from "../core/layout";
import type { BlocksPicture } from "./blocks";
import type { Theme } from "./theme";

export function drawSmall(g: CanvasRenderingContext2D, picture: BlocksPicture, margin: number): void {
  const { state, layout, theme } = picture;
  const scale = g.getTransform().a;
  const image = g.createImageData(g.canvas.width, g.canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const paint = inks(theme);
  const { blocks } = state;
  const lit = picture.hovered;
  const size = Math.max(2, Math.round(layout.width * scale));
  const foot = Math.max(1, Math.round(scale));
  const fill = (left: number, top: number, width: number, height: number, color: number): void => {
    for (let y = top; y < top + height; y++) {
      const row = y * image.width;
      for (let x = row + left; x < row + left + width; x++) pixels[x] = color; // a few pixels: fill() would cost more
    }
  };
  for (let block = 0; block < blocks.count; block++) {
    const { x, y } = cellAt(layout, block);
    const [left, top] = [Math.round((x + margin) * scale), Math.round((y + margin) * scale)];
    const owner = blocks.owner[block];
    const last = owner < 0 && blocks.hash[block] >= 0 ? blocks.lastOwner[block] : -1;
    if (block === 0) fill(left, top, size, size, paint.reserved);
    else if (owner >= 0) {
      fill(left, top, size, size, owner === lit ? paint.lit : paint.fills[owner % NUM_COLORS]);
      if (blocks.refs[block] > 1) fill(left, top, foot, foot, paint.ground);
    } else if (last >= 0) {
      fill(left, top, size, size, paint.tints[last % NUM_COLORS]);
      fill(left, top + size - foot, size, foot, last === lit ? paint.lit : paint.colors[last % NUM_COLORS]);
    } else fill(left, top, size, size, paint.empty);
  }
  g.putImageData(image, 0, 0);
  markTouched(g, picture, margin);
}

function markTouched(g: CanvasRenderingContext2D, { state, layout, theme }: BlocksPicture, margin: number): void {
  const step = state.shownStep;
  const { touched } = state.blocks;
  g.strokeStyle = theme.phases.update;
  g.lineWidth = 1;
  g.beginPath();
  for (let block = 1; step >= 0 && block < touched.length; block++) {
    if (touched[block] !== step) continue;
    const { x, y } = cellAt(layout, block);
    g.rect(x + margin - 0.5, y + margin - 0.5, layout.width + 1, layout.height + 1);
  }
  g.stroke();
}

interface Inks {
  fills: number[];
  tints: number[];
  colors: number[];
  empty: number;
  reserved: number;
  ground: number;
  lit: number;
}

const known = new WeakMap<Theme, Inks>();

/** The theme's colours as pixels, little-endian RGBA. */
function inks(theme: Theme): Inks {
  let found = known.get(theme);
  if (!found) {
    const pixel = (color: string): number => {
      const [r, g, b] = parseColor(color).map(Math.round);
      return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    };
    found = {
      fills: theme.fills.map(pixel),
      tints: theme.tints.map(pixel),
      colors: theme.colors.map(pixel),
      empty: pixel(theme.bg2),
      reserved: pixel(theme.ink3),
      ground: pixel(theme.bg),
      lit: pixel(theme.ink),
    };
    known.set(theme, found);
  }
  return found;
}
