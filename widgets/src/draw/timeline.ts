// The timeline: phase times stacked, tokens under the budget, a lane a request. Bars are one canvas, the playhead another.

import { type History, SERIES } from "../core/history";
import { DECADES, type TimeScale, axisTop, logHeight, niceCeiling, stackHeights, xOfStep } from "../core/layout";
import { duration, grouped } from "../core/words";
import { type LaneLayout, drawLanes } from "./lanes";
import type { Theme } from "./theme";

export const LEFT = 84; // labels
export const HEAD = 20; // playhead's number
const TIME_HEIGHT = 64;
const TOKENS_TOP = HEAD + TIME_HEIGHT + 12;
const TOKENS_HEIGHT = 42;
const CACHE_TOP = TOKENS_TOP + TOKENS_HEIGHT + 6;
const CACHE_HEIGHT = 24;
export const LANES_TOP = CACHE_TOP + CACHE_HEIGHT + 10;

export interface TimelinePicture {
  history: History;
  theme: Theme;
  scale: TimeScale;
  width: number;
  log: boolean;
  budget: number;
  /** KV blocks that requests may hold. */
  usable: number;
  id(request: number): string;
  hovered: number;
  selected: number;
  /** The live step, whose phases may still be under way. */
  lanes: LaneLayout;
}

export function drawTimeline(g: CanvasRenderingContext2D, picture: TimelinePicture): void {
  const most = timeTop(picture);
  drawAxes(g, picture, most);
  drawStepNumbers(g, picture);
  g.save();
  g.beginPath();
  g.rect(LEFT - 1, 0, picture.width - LEFT + 1, 2000);
  g.clip();
  if (picture.log) drawLogTimes(g, picture, most);
  else drawTimes(g, picture, most);
  drawMarks(g, picture);
  drawTokens(g, picture);
  drawCache(g, picture);
  g.restore();
  drawLanes(g, picture);
  drawHoles(g, picture);
}

function drawAxes(g: CanvasRenderingContext2D, { theme, width, history, log, budget }: TimelinePicture, most: number): void {
  const say = (text: string, y: number, color: string): void => {
    g.fillStyle = color;
    g.fillText(text, 0, y);
  };
  g.font = `11px ${theme.ui}`;
  say("time", HEAD + 12, theme.ink2);
  say("tokens", TOKENS_TOP + 24, theme.ink2);
  say("KV in use", CACHE_TOP + 12, theme.ink2);
  say("requests", LANES_TOP + 8, theme.ink2);
  g.font = `10px ${theme.ui}`;
  if (budget) say(`budget ${grouped(budget)}`, TOKENS_TOP + 38, theme.warn);
  if (history.value("queries", history.end - 1)) say("prefix hits", CACHE_TOP + 24, theme.ok);
  if (history.length) say(log ? `log, to ${duration(most)}` : `to ${duration(most)}`, HEAD + 26, theme.ink3);
  g.strokeStyle = theme.line;
  g.lineWidth = 1;
  for (const y of [HEAD + TIME_HEIGHT, TOKENS_TOP + TOKENS_HEIGHT, CACHE_TOP + CACHE_HEIGHT]) {
    g.beginPath();
    g.moveTo(LEFT, y + 0.5);
    g.lineTo(width, y + 0.5);
    g.stroke();
  }
}

function timeTop({ history, scale, log }: TimelinePicture): number {
  const { from, to } = visible(history, scale);
  const totals = Array.from({ length: Math.max(0, to - from) }, (_, i) => total(history, from + i));
  return log ? niceCeiling(totals.reduce((most, value) => Math.max(most, value), 0)) : axisTop(totals);
}

const NUMBER_ROOM = 52; // pixels from one step number to the next

function drawStepNumbers(g: CanvasRenderingContext2D, { history, theme, scale, width }: TimelinePicture): void {
  const { from, to } = visible(history, scale);
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((count) => count * scale.perStep >= NUMBER_ROOM) ?? 10_000;
  g.font = `10px ${theme.mono}`;
  g.fillStyle = theme.ink3;
  g.textAlign = "center";
  for (let step = Math.ceil(from / every) * every; step < to; step += every) {
    const x = playheadX(scale, step);
    if (x >= LEFT && x < width - 8) g.fillText(String(step), x, HEAD - 8);
  }
  g.textAlign = "left";
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

/** A bar that is longer than the axis is torn, with its time beside it. */
function drawTimes(g: CanvasRenderingContext2D, { history, theme, scale }: TimelinePicture, most: number): void {
  const shown = bars(history, scale);
  const isTorn = ({ step }: { step: number }): boolean => total(history, step) > most * 1.001;
  const torn = shown.filter(isTorn);
  const full = TIME_HEIGHT - 2;
  const room = torn.length ? TIME_HEIGHT - 15 : full; // torn ones end above the others, where their times have room
  const stacks = shown.map((bar) => stackHeights(SERIES.map((name) => history.value(name, bar.step)), most, isTorn(bar) ? full : room));
  const bottom = HEAD + TIME_HEIGHT;
  SERIES.forEach((name, series) => {
    g.fillStyle = theme.phases[name];
    shown.forEach(({ x, width }, i) => {
      let below = 0;
      for (let k = 0; k < series; k++) below += stacks[i][k];
      const height = stacks[i][series];
      if (height > 0) g.fillRect(x, bottom - below - height, width, height);
    });
  });
  g.font = `10px ${theme.ui}`;
  g.strokeStyle = theme.bg;
  g.fillStyle = theme.ink2;
  g.lineWidth = 2;
  for (const { x, width } of torn) {
    g.beginPath();
    g.moveTo(x - 1, HEAD + 14);
    g.lineTo(x + width + 1, HEAD + 8);
    g.stroke();
  }
  torn.forEach(({ x, width, step }, i) => {
    if ((torn[i + 1]?.x ?? Infinity) < x + NUMBER_ROOM) return;
    g.fillText(duration(total(history, step)), x + width + 4, HEAD + 11);
  });
}

/** Stacked logarithms would mean nothing: each phase is a tick at its own height instead, beside lines at powers of ten. */
function drawLogTimes(g: CanvasRenderingContext2D, { history, theme, scale, width }: TimelinePicture, most: number): void {
  const [bottom, height] = [HEAD + TIME_HEIGHT, TIME_HEIGHT - 2];
  const shown = bars(history, scale);
  g.font = `10px ${theme.ui}`;
  g.textAlign = "right";
  for (let power = 10 ** Math.floor(Math.log10(most)); power > most / 10 ** DECADES; power /= 10) {
    const y = Math.round(bottom - logHeight(power, most, height));
    g.fillStyle = theme.line;
    g.fillRect(LEFT, y, width - LEFT, 1);
    g.fillStyle = theme.ink3;
    g.fillText(said(power), width, y - 1);
  }
  g.textAlign = "left";
  for (const name of SERIES) {
    g.fillStyle = theme.phases[name];
    for (const { x, width: w, step } of shown) {
      const h = logHeight(history.value(name, step), most, height);
      if (h > 0) g.fillRect(x, bottom - h - 1, Math.max(1, w), 2.5);
    }
  }
}

/** A power of ten of a second. */
function said(power: number): string {
  const [unit, value] = power >= 0.99 ? ["s", power] : power >= 0.99e-3 ? ["ms", power * 1e3] : ["µs", power * 1e6];
  return `${Math.round(value)} ${unit}`;
}

function drawMarks(g: CanvasRenderingContext2D, { history, theme, scale }: TimelinePicture): void {
  g.fillStyle = theme.bad;
  g.font = `700 12px ${theme.ui}`;
  for (const step of history.failures.keys()) g.fillText("✕", playheadX(scale, step) + 3, HEAD + TIME_HEIGHT - 6);
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
  const yOf = (tokens: number): number => (tokens <= most ? bottom - height(tokens) : TOKENS_TOP - 2);
  const y = yOf(budget);
  g.strokeStyle = g.fillStyle = theme.warn;
  g.lineWidth = 1;
  g.setLineDash([5, 4]);
  g.beginPath();
  g.moveTo(LEFT, yOf(history.value("budget", from) || budget));
  for (let step = from; step < to; step++) {
    const [was, is] = [history.value("budget", step - 1) || history.value("budget", step), history.value("budget", step)];
    if (is === was || !is) continue;
    g.lineTo(LEFT + xOfStep(scale, step), yOf(was));
    g.lineTo(LEFT + xOfStep(scale, step), yOf(is));
  }
  const last = yOf(history.value("budget", to - 1) || budget);
  g.lineTo(LEFT + xOfStep(scale, to), last);
  g.lineTo(LEFT + xOfStep(scale, to), y);
  g.lineTo(width, y);
  g.stroke();
  g.setLineDash([]);
}

/** How full the KV cache is, and what share of all prompt tokens so far was found in it. */
function drawCache(g: CanvasRenderingContext2D, { history, theme, scale, usable }: TimelinePicture): void {
  const bottom = CACHE_TOP + CACHE_HEIGHT;
  const shown = bars(history, scale);
  g.fillStyle = theme.ink3;
  g.globalAlpha = 0.45;
  for (const { x, width, step } of shown) {
    const h = (history.value("used", step) / usable) * CACHE_HEIGHT;
    if (h > 0) g.fillRect(x, bottom - h, width, h);
  }
  g.globalAlpha = 1;
  g.strokeStyle = theme.ok;
  g.lineWidth = 1.6;
  g.beginPath();
  for (const { x, width, step } of shown) {
    const queries = history.value("queries", step);
    if (queries) g.lineTo(x + width / 2, bottom - 1 - (history.value("hits", step) / queries) * (CACHE_HEIGHT - 2));
  }
  g.stroke();
}

/** Steps that nothing is known of. */
function drawHoles(g: CanvasRenderingContext2D, { history, theme, scale, width }: TimelinePicture): void {
  for (const [from, to] of history.holes) {
    const x = Math.max(LEFT, LEFT + xOfStep(scale, from));
    const room = Math.min(width, LEFT + xOfStep(scale, to)) - x;
    if (room <= 0) continue;
    g.fillStyle = theme.bg2;
    g.fillRect(x, HEAD, room, 2000);
    g.fillStyle = theme.ink2;
    g.font = `11px ${theme.ui}`;
    if (room > 80) g.fillText("not received", x + 6, HEAD + 14);
  }
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
