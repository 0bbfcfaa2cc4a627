// The request lanes of the timeline: waiting, prefill, decode, preempted, finished.

import { NUM_COLORS } from "../core/colors";
import { type History, type Lane, LaneKind } from "../core/history";
import { type TimeScale, packLanes, stepOfX, xOfStep } from "../core/layout";
import { LANES_TOP, LEFT, type TimelinePicture } from "./timeline";

const LANE_MOST = 13;
const LANES_MOST_PX = 130;

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

const LANE_ALPHA: Record<LaneKind, number> = {
  [LaneKind.waiting]: 0.14,
  [LaneKind.prefill]: 0.42,
  [LaneKind.decode]: 1,
  [LaneKind.preempted]: 0.14,
  [LaneKind.finished]: 0,
};

export function drawLanes(g: CanvasRenderingContext2D, picture: TimelinePicture): void {
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
