// The block map when cells are a few pixels: ten thousand of them are written as pixels, which is ten times as fast as
// filling rectangles. Colour is the owner, a pale cell with a foot is cached and free, a notch is shared.

import { NUM_COLORS, parseColor } from "../core/colors";
import { cellAt } from "../core/layout";
import type { BlocksPicture } from "./blocks";
import type { Theme } from "./theme";

/** What stands on a canvas: of each block its ground and its mark, so that a scrub writes only what has changed. */
interface Drawn {
  key: string;
  theme: Theme;
  image: ImageData;
  pixels: Uint32Array;
  bodies: Uint32Array;
  marks: Uint32Array;
}

const onCanvas = new WeakMap<HTMLCanvasElement, Drawn>();

export function drawSmall(g: CanvasRenderingContext2D, picture: BlocksPicture, margin: number): void {
  const { state, layout, theme } = picture;
  const scale = g.getTransform().a;
  const drawn = drawnOn(g, picture, margin);
  const { pixels, bodies, marks, image } = drawn;
  const paint = inks(theme);
  const { count, owner: owners, hash, lastOwner, refs } = state.blocks;
  const lit = picture.hovered;
  const size = Math.max(2, Math.round(layout.width * scale));
  const foot = Math.max(1, Math.round(scale));
  for (let block = 0; block < count; block++) {
    const owner = owners[block];
    const last = owner < 0 && hash[block] >= 0 ? lastOwner[block] : -1;
    let body = paint.empty;
    let mark = 0; // a notch above, for shared ones; a foot below, for cached ones
    if (block === 0) body = paint.reserved;
    else if (owner >= 0) {
      body = owner === lit ? paint.lit : paint.fills[owner % NUM_COLORS];
      if (refs[block] > 1) mark = paint.ground;
    } else if (last >= 0) {
      body = paint.tints[last % NUM_COLORS];
      mark = last === lit ? paint.lit : paint.colors[last % NUM_COLORS];
    }
    if (bodies[block] === body && marks[block] === mark) continue;
    bodies[block] = body;
    marks[block] = mark;
    const { x, y } = cellAt(layout, block);
    const at = Math.round((y + margin) * scale) * image.width + Math.round((x + margin) * scale);
    fill(pixels, image.width, at, size, size, body);
    if (mark && last < 0) fill(pixels, image.width, at, foot, foot, mark);
    else if (mark) fill(pixels, image.width, at + (size - foot) * image.width, size, foot, mark);
  }
  g.putImageData(image, 0, 0);
  markTouched(g, picture, margin);
}

function fill(pixels: Uint32Array, stride: number, at: number, width: number, height: number, color: number): void {
  for (let row = at; row < at + height * stride; row += stride) {
    for (let x = row; x < row + width; x++) pixels[x] = color; // a few pixels: fill() would cost more
  }
}

function drawnOn(g: CanvasRenderingContext2D, { state, layout, theme }: BlocksPicture, margin: number): Drawn {
  const { width, height } = g.canvas;
  const { count } = state.blocks;
  const key = [width, height, count, layout.columns, layout.width, layout.gap, margin].join();
  const known = onCanvas.get(g.canvas);
  if (known?.key === key && known.theme === theme) return known;
  const image = g.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const drawn = { key, theme, image, pixels, bodies: new Uint32Array(count), marks: new Uint32Array(count) };
  onCanvas.set(g.canvas, drawn);
  return drawn;
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
