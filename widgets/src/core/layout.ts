// Where things go: pure arithmetic, no drawing.

export interface GridLayout {
  columns: number;
  rows: number;
  width: number; // of a cell
  height: number;
  gap: number;
  /** What fits in a cell: nothing, the block's number, number and owner. */
  labels: 0 | 1 | 2;
  totalHeight: number;
}

const MAX_CELL = 72;
const MIN_CELL = 3;

/** The largest cells with which `count` blocks fit the space; the smallest ones, taller than the space, if none do. */
export function gridLayout(count: number, width: number, height: number): GridLayout {
  let layout = gridOf(count, width, MIN_CELL);
  for (let size = MAX_CELL; size > MIN_CELL; size--) {
    const candidate = gridOf(count, width, size);
    if (candidate.totalHeight <= height && candidate.columns >= 1) {
      layout = candidate;
      break;
    }
  }
  return layout;
}

function gridOf(count: number, width: number, size: number): GridLayout {
  const gap = size >= 44 ? 8 : size >= 28 ? 5 : size >= 14 ? 3 : size >= 6 ? 2 : 1;
  const height = size >= 28 ? Math.round(size * 0.86) : size;
  const columns = Math.max(1, Math.floor((width + gap) / (size + gap)));
  const rows = Math.ceil(count / columns);
  const labels = size >= 44 ? 2 : size >= 24 ? 1 : 0;
  return { columns, rows, width: size, height, gap, labels, totalHeight: Math.max(0, rows * (height + gap) - gap) };
}

export function cellAt(layout: GridLayout, index: number): { x: number; y: number } {
  const column = index % layout.columns;
  const row = Math.floor(index / layout.columns);
  return { x: column * (layout.width + layout.gap), y: row * (layout.height + layout.gap) };
}

/** The block under a point; -1 between and beyond the cells. Gaps of small cells count as the cell before them. */
export function cellUnder(layout: GridLayout, count: number, x: number, y: number): number {
  const stepX = layout.width + layout.gap;
  const stepY = layout.height + layout.gap;
  const column = Math.floor(x / stepX);
  const row = Math.floor(y / stepY);
  if (x < 0 || y < 0 || column >= layout.columns) return -1;
  const inside = layout.gap <= 3 || (x - column * stepX <= layout.width && y - row * stepY <= layout.height);
  const index = row * layout.columns + column;
  return inside && index < count ? index : -1;
}

/** Which steps a timeline shows, and how wide each is. */
export interface TimeScale {
  from: number; // a step, may be fractional
  perStep: number; // pixels
  width: number;
}

export const MAX_STEP_PX = 21;
const ROOM_AHEAD = 2; // steps of air after the last one

export function fitScale(base: number, end: number, width: number): TimeScale {
  const steps = Math.max(1, end - base + ROOM_AHEAD);
  return { from: base, perStep: Math.min(MAX_STEP_PX, width / steps), width };
}

export function xOfStep(scale: TimeScale, step: number): number {
  return (step - scale.from) * scale.perStep;
}

export function stepOfX(scale: TimeScale, x: number): number {
  return Math.floor(scale.from + x / scale.perStep);
}

/** Zoom by `factor` around the step at `x`, within base … end. */
export function zoomScale(scale: TimeScale, factor: number, x: number, base: number, end: number): TimeScale {
  const smallest = fitScale(base, end, scale.width).perStep;
  const perStep = Math.max(smallest, Math.min(64, scale.perStep * factor));
  const at = scale.from + x / scale.perStep;
  return clampScale({ ...scale, perStep, from: at - x / perStep }, base, end);
}

export function clampScale(scale: TimeScale, base: number, end: number): TimeScale {
  const shown = scale.width / scale.perStep;
  return { ...scale, from: Math.max(base, Math.min(scale.from, end + ROOM_AHEAD - shown)) };
}

/** Heights in a stack of times, in pixels; one that is over the top of the axis is cut there. */
export function stackHeights(parts: number[], most: number, height: number): number[] {
  const total = parts.reduce((sum, part) => sum + part, 0);
  if (total <= 0 || most <= 0) return parts.map(() => 0);
  return parts.map((part) => (part / total) * Math.min(total / most, 1) * height);
}

export const DECADES = 5; // of a logarithmic axis

/** Height of a value on a logarithmic axis that ends at `most`; 0 for what is smaller than the axis can show. */
export function logHeight(value: number, most: number, height: number): number {
  return value > 0 ? Math.max(0, 1 + Math.log10(value / most) / DECADES) * height : 0;
}

/** The top of a linear axis: the longest, unless so few are so long (a first step that compiles) that all others would vanish. */
export function axisTop(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const few = sorted.length >= 4 ? Math.ceil(sorted.length / 20) : 0;
  const most = sorted[sorted.length - 1] ?? 0;
  const usual = sorted[sorted.length - 1 - few] ?? 0;
  if (usual <= 0 || most <= 3 * usual) return niceCeiling(most);
  return niceCeiling(sorted.reduce((top, value) => (value <= 2 * usual ? value : top), 0));
}

/** Rows for lanes: as many as needed so that no two that overlap in time share one. */
export function packLanes(spans: { from: number; to: number }[], gap = 1): number[] {
  const ends: number[] = [];
  return spans.map(({ from, to }) => {
    let row = ends.findIndex((end) => end + gap <= from);
    if (row < 0) row = ends.length;
    ends[row] = to;
    return row;
  });
}

/** A round number at or above `value`. */
export function niceCeiling(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((factor) => factor * power >= value * 0.999) ?? 10) * power;
}
