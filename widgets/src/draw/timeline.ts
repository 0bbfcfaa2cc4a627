// The timeline: phase times stacked, tokens under the budget, a lane a request. Bars are one canvas, the playhead another.

import { NUM_COLORS } from "../core/colors";
import { type History, type Lane, LaneKind, SERIES } from "../core/history";
import { type TimeScale, niceCeiling, packLanes, stackHeights, stepOfX, xOfStep } from "../core/layout";
import { duration } from "../core/words";
import type { Theme } from "./theme";

export const LEFT = 84; // labels
export const HEAD = 20; // playhead's number
const TIME_HEIGHT = 64;
const TOKENS_TOP = HEAD + TIME_HEIGHT + 12;
const TOKENS_HEIGHT = 42;
export const LANES_TOP = TOKENS_TOP + TOKENS_HEIGHT + 10;
const LANE_MOST = 13;
const LANES_MOST_PX = 130;

export interface TimelinePicture {
  history: History;
  theme: Theme;
  scale: TimeScale;
  width: number;
  log: boolean;
  budget: number;
  id(request: number): string;
  hovered: number;
  selected: number;
  /** The live step, whose phases may still be under way. */
  lanes: LaneLayout;
}

export interface LaneLayout {
  lanes: Lane[];
  rows: number[];
  perRow: number;
  numRows: number;
  left: number; // lanes that did not fit
}

/** Each request its own row while that fits; else requests that do not overlap share rows, and rows get thinner. */
export function layoutLanes(history: History, scale: TimeScale): LaneLayout {
  const to = scale.from + scale.width / scale.perStep;
  const lanes = [...history.lanes.values()].filter((lane) => laneEnd(lane, history.end) >= scale.from && lane.steps[0] <= to);
  const own = lanes.length * LANE_MOST <= LANES_MOST_PX;
  const spans = lanes.map((lane) => ({ from: lane.steps[0], to: laneEnd(lane, history.end) }));
  const rows = own ? lanes.map((_, i) => i) : packLanes(spans, Math.max(1, 30 / scale.perStep));
  const numRows = rows.reduce((most, row) => Math.max(most, row + 1), 0);
  const perRow = Math.max(3, Math.min(LANE_MOST, Math.floor(LANES_MOST_PX / Math.max(1, numRows))));
  const fit = Math.floor(LANES_MOST_PX / perRow);
  const left = rows.filter((row) => row >= fit).length;
  return { lanes, rows, perRow, numRows: Math.min(numRows, fit), left };
}

export function timelineHeight(layout: LaneLayout): number {
  return LANES_TOP + Math.max(3, layout.numRows) * layout.perRow + 8;
}

function laneEnd(lane: Lane, end: number): number {
  const last = lane.kinds.length - 1;
  return lane.kinds[last] === LaneKind.finished ? lane.steps[last] + 1 : end;
}

export function laneUnder(layout: LaneLayout, scale: TimeScale, end: number, x: number, y: number): number {
  const row = Math.floor((y - LANES_TOP) / layout.perRow);
  const step = stepOfX(scale, x - LEFT);
  const slack = 26 / scale.perStep;
  const found = layout.lanes.findIndex(
    (lane, i) => layout.rows[i] === row && lane.steps[0] - slack <= step && laneEnd(lane, end) >= step,
  );
  return found < 0 ? -1 : layout.lanes[found].request;
}

export function drawTimeline(g: CanvasRenderingContext2D, picture: TimelinePicture): void {
  drawAxes(g, picture);
  g.save();
  g.beginPath();
  g.rect(LEFT - 1, 0, picture.width - LEFT + 1, 2000);
  g.clip();
  drawTimes(g, picture);
  drawTokens(g, picture);
  g.restore();
  drawLanes(g, picture);
}

function drawAxes(g: CanvasRenderingContext2D, { theme, width, history, log, scale }: TimelinePicture): void {
  const say = (text: string, y: number, color: string): void => {
    g.fillStyle = color;
    g.fillText(text, 0, y);
  };
  g.font = `11px ${theme.ui}`;
  say("time", HEAD + 12, theme.ink2);
  say("tokens", TOKENS_TOP + 24, theme.ink2);
  say("requests", LANES_TOP + 8, theme.ink2);
  const most = mostTime(history, scale);
  g.font = `10px ${theme.ui}`;
  if (history.length) say(log ? `log, to ${duration(most)}` : `to ${duration(most)}`, HEAD + 26, theme.ink3);
  g.strokeStyle = theme.line;
  g.lineWidth = 1;
  for (const y of [HEAD + TIME_HEIGHT, TOKENS_TOP + TOKENS_HEIGHT]) {
    g.beginPath();
    g.moveTo(LEFT, y + 0.5);
    g.lineTo(width, y + 0.5);
    g.stroke();
  }
}

function mostTime(history: History, scale: TimeScale): number {
  let most = 0;
  const { from, to } = visible(history, scale);
  for (let step = from; step < to; step++) most = Math.max(most, total(history, step));
  return niceCeiling(most);
}

function total(history: History, step: number): number {
  return SERIES.reduce((sum, name) => sum + history.value(name, step), 0);
}

function visible(history: History, scale: TimeScale): { from: number; to: number } {
  const from = Math.max(history.base, Math.floor(scale.from));
  return { from, to: Math.min(history.end, Math.ceil(scale.from + scale.width / scale.perStep) + 1) };
}

/** Bars of at least a pixel: where steps are narrower, the slowest of those in a pixel stands for them. */
function bars(history: History, scale: TimeScale): { x: number; width: number; step: number }[] {
  const { from, to } = visible(history, scale);
  const list: { x: number; width: number; step: number }[] = [];
  if (scale.perStep >= 2) {
    const gap = scale.perStep >= 12 ? 5 : scale.perStep >= 5 ? 1.5 : 0.5;
    for (let step = from; step < to; step++) list.push({ x: LEFT + xOfStep(scale, step), width: scale.perStep - gap, step });
    return list;
  }
  const perBar = Math.ceil(2 / scale.perStep);
  for (let start = from; start < to; start += perBar) {
    let slowest = start;
    for (let step = start; step < Math.min(to, start + perBar); step++) {
      if (total(history, step) > total(history, slowest)) slowest = step;
    }
    list.push({ x: LEFT + xOfStep(scale, start), width: perBar * scale.perStep - 0.3, step: slowest });
  }
  return list;
}

function drawTimes(g: CanvasRenderingContext2D, { history, theme, scale, log }: TimelinePicture): void {
  const most = mostTime(history, scale);
  const shown = bars(history, scale);
  const stacks = shown.map(({ step }) =>
    stackHeights(SERIES.map((name) => history.value(name, step)), most, TIME_HEIGHT - 2, log),
  );
  SERIES.forEach((name, series) => {
    g.fillStyle = theme.phases[name];
    shown.forEach(({ x, width }, i) => {
      let below = 0;
      for (let k = 0; k < series; k++) below += stacks[i][k];
      const height = stacks[i][series];
      if (height > 0) g.fillRect(x, HEAD + TIME_HEIGHT - below - height, width, height);
    });
  });
  g.fillStyle = theme.bad;
  for (const step of history.failures.keys()) {
    const x = LEFT + xOfStep(scale, step + 0.5);
    g.font = `700 12px ${theme.ui}`;
    g.fillText("✕", x - 5, HEAD + TIME_HEIGHT - 6);
  }
  g.fillStyle = theme.warn;
  for (const step of history.breaks.keys()) diamond(g, LEFT + xOfStep(scale, step), HEAD + TIME_HEIGHT + 0.5, 4);
}

function drawTokens(g: CanvasRenderingContext2D, { history, theme, scale, budget, width }: TimelinePicture): void {
  let most = budget;
  const { from, to } = visible(history, scale);
  let seen = 0;
  for (let step = from; step < to; step++) seen = Math.max(seen, history.value("prefill", step) + history.value("decode", step));
  most = Math.max(seen, Math.min(budget, seen * 4)) || budget || 1;
  const bottom = TOKENS_TOP + TOKENS_HEIGHT;
  const height = (tokens: number): number => (tokens / most) * (TOKENS_HEIGHT - 4);
  const shown = bars(history, scale);
  g.fillStyle = theme.phases.forward;
  for (const { x, width: w, step } of shown) {
    const h = height(history.value("decode", step));
    if (h > 0) g.fillRect(x, bottom - Math.max(h, 1), w, Math.max(h, 1));
  }
  g.fillStyle = theme.phases.schedule;
  g.globalAlpha = 0.75;
  for (const { x, width: w, step } of shown) {
    const h = height(history.value("prefill", step));
    if (h > 0) g.fillRect(x, bottom - height(history.value("decode", step)) - h, w, h);
  }
  g.globalAlpha = 1;
  if (!budget) return;
  const y = budget <= most ? bottom - height(budget) : TOKENS_TOP - 2;
  g.strokeStyle = g.fillStyle = theme.warn;
  g.lineWidth = 1;
  g.setLineDash([5, 4]);
  g.beginPath();
  g.moveTo(LEFT, y);
  g.lineTo(width, y);
  g.stroke();
  g.setLineDash([]);
  g.font = `11px ${theme.ui}`;
  g.textAlign = "right";
  g.fillText(budget <= most ? `budget ${budget}` : `budget ${budget} ↑`, width - 4, y - 4);
  g.textAlign = "left";
}

const LANE_ALPHA: Record<LaneKind, number> = {
  [LaneKind.waiting]: 0.14,
  [LaneKind.prefill]: 0.42,
  [LaneKind.decode]: 1,
  [LaneKind.preempted]: 0.14,
  [LaneKind.finished]: 0,
};

function drawLanes(g: CanvasRenderingContext2D, picture: TimelinePicture): void {
  const { lanes: layout, theme } = picture;
  layout.lanes.forEach((lane, i) => {
    if (layout.rows[i] < layout.numRows) drawLane(g, picture, lane, layout.rows[i]);
  });
  if (layout.left) {
    g.font = `10px ${theme.ui}`;
    g.fillStyle = theme.ink3;
    g.fillText(`+${layout.left} more`, 0, LANES_TOP + 22);
  }
}

function drawLane(g: CanvasRenderingContext2D, picture: TimelinePicture, lane: Lane, row: number): void {
  const { theme, scale, history, lanes: layout } = picture;
  const y = LANES_TOP + row * layout.perRow;
  const thick = Math.max(2, layout.perRow - 5);
  const color = theme.colors[lane.request % NUM_COLORS];
  const lit = picture.hovered < 0 || picture.hovered === lane.request;
  const last = lane.steps.length - 1;
  const base = lit ? 1 : 0.25;
  const cut = (x: number): number => Math.max(LEFT, Math.min(picture.width, x));
  const barEnd = scale.perStep >= 12 ? 5 : 0;
  g.fillStyle = color;
  lane.kinds.forEach((kind, i) => {
    if (kind === LaneKind.finished) return;
    const to = i < last ? lane.steps[i + 1] + (lane.kinds[i + 1] === LaneKind.finished ? 1 : 0) : history.end;
    const x = cut(LEFT + xOfStep(scale, lane.steps[i]));
    const end = cut(LEFT + xOfStep(scale, to) - (i === last || lane.kinds[i + 1] === LaneKind.finished ? barEnd : 0));
    g.globalAlpha = base * LANE_ALPHA[kind];
    if (end > x) g.fillRect(x, y, end - x, thick);
    if (kind === LaneKind.waiting || kind === LaneKind.preempted) dashes(g, x, end, y + thick / 2, color, base);
  });
  g.globalAlpha = base;
  marks(g, picture, lane, y, thick);
  const start = LEFT + xOfStep(scale, lane.steps[0]);
  if (layout.perRow >= 9) {
    g.font = `${picture.selected === lane.request ? "700 " : ""}10px ${theme.mono}`;
    g.fillStyle = picture.selected === lane.request ? theme.ink : theme.ink2;
    g.textAlign = "right";
    const id = picture.id(lane.request);
    g.fillText(id.length > 5 ? `…${id.slice(-4)}` : id, Math.max(start, LEFT) - 4, y + thick);
    g.textAlign = "left";
  }
  g.globalAlpha = 1;
}

function dashes(g: CanvasRenderingContext2D, x: number, end: number, y: number, color: string, alpha: number): void {
  if (end - x < 4) return;
  g.globalAlpha = alpha * 0.8;
  g.strokeStyle = color;
  g.lineWidth = 1;
  g.setLineDash([3, 3]);
  g.beginPath();
  g.moveTo(x, y);
  g.lineTo(end, y);
  g.stroke();
  g.setLineDash([]);
}

function marks(g: CanvasRenderingContext2D, { theme, scale, width }: TimelinePicture, lane: Lane, y: number, thick: number): void {
  const size = Math.max(2.5, Math.min(4.5, thick / 1.8));
  lane.kinds.forEach((kind, i) => {
    const x = LEFT + xOfStep(scale, lane.steps[i]);
    if (x < LEFT || x > width) return;
    if (kind === LaneKind.preempted) {
      g.fillStyle = theme.bad;
      g.beginPath();
      g.moveTo(x - size, y - 1);
      g.lineTo(x + size, y - 1);
      g.lineTo(x, y + 2 * size - 1);
      g.fill();
    } else if (kind === LaneKind.finished) {
      g.fillStyle = theme.ok;
      g.beginPath();
      g.arc(x + scale.perStep + (scale.perStep >= 12 ? 4 : size + 1), y + thick / 2, size, 0, 7);
      g.fill();
    }
  });
}

function diamond(g: CanvasRenderingContext2D, x: number, y: number, size: number): void {
  g.beginPath();
  g.moveTo(x, y - size);
  g.lineTo(x + size, y);
  g.lineTo(x, y + size);
  g.lineTo(x - size, y);
  g.fill();
}

/** Where the playhead stands for a step: over its bar. */
export function playheadX(scale: TimeScale, step: number): number {
  return LEFT + xOfStep(scale, step) + Math.min(8, Math.max(0.5, scale.perStep / 2));
}
