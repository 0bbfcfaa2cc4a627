// The timeline pane: drag to look back, zoom with the buttons or the wheel, click a lane to choose its request.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { SERIES } from "../core/history";
import { type TimeScale, clampScale, fitScale, stepOfX, xOfStep, zoomScale } from "../core/layout";
import { limitsOf } from "../core/limits";
import { sayStep } from "../core/sentences";
import { laneUnder, layoutLanes, timelineHeight } from "../draw/lanes";
import { LANES_TOP, LEFT, drawTimeline, playheadX } from "../draw/timeline";
import type { Moment } from "./context";
import { TimelineTable } from "./timeline_table";
import { TimelineTip } from "./timeline_tip";
import { useDrawing, useSize } from "./use_canvas";

export function Timeline({ moment }: { moment: Moment }): JSX.Element {
  const { store, state, theme } = moment;
  const { history, header, live } = store.fold;
  const [log, setLog] = useState(false);
  const [asTable, setAsTable] = useState(false);
  const [zoomed, setZoomed] = useState<TimeScale | null>(null);
  const [pointed, setPointed] = useState(-1);
  const [box, { width }] = useSize<HTMLDivElement>();
  const room = Math.max(10, width - LEFT - 6);
  const scale = scaleOf(zoomed, moment, room);
  const lanes = layoutLanes(history, scale);
  const height = timelineHeight(lanes);
  const key = [store.fold.version, theme, log, scale.from, scale.perStep, store.hovered, store.selected, height];
  const bars = useDrawing(width, height, key, (g) =>
    drawTimeline(g, {
      history, theme, scale, width, log, lanes,
      budget: limitsOf(header, state).budget,
      usable: Math.max(1, state.blocks.count - 1),
      id: (request) => store.fold.id(request),
      hovered: store.hovered,
      selected: store.selected,
    }),
  );
  const zoom = (factor: number, x = room / 2): void => {
    const next = zoomScale(scale, factor, x, history.base, history.end);
    setZoomed(next.perStep <= fitScale(history.base, history.end, room).perStep ? null : next);
  };
  useWheel(box, (factor, x) => zoom(factor, x - LEFT), (steps) => setZoomed(clampScale({ ...scale, from: scale.from + steps }, history.base, history.end)), scale.perStep);
  const end = live.shownStep;
  return (
    <section class="nbe-timeline" aria-label="Timeline">
      <h3>
        Timeline <small>{store.isRecording || store.gone ? "drag to look around" : `drag to look back; the engine stays at step ${live.step}`}</small>
        <span class="nbe-spring" />
        <span class="nbe-series" aria-hidden="true">
          {SERIES.map((name) => (
            <span key={name}><i style={{ background: `var(--nbe-${name})` }} />{name}</span>
          ))}
        </span>
        <span class="nbe-zoom">
          <button type="button" aria-pressed={asTable} title="The steps as a table" onClick={() => setAsTable(!asTable)}>list</button>
          <button type="button" aria-pressed={log} title="Logarithmic times: each phase at its own height" onClick={() => setLog(!log)}>log</button>
          <button type="button" aria-label="Zoom out" title="Zoom out" onClick={() => zoom(1 / 1.6)}>−</button>
          <button type="button" aria-label="Zoom in" title="Zoom in (ctrl + wheel)" onClick={() => zoom(1.6)}>+</button>
          <button type="button" title="Show all steps" onClick={() => setZoomed(null)}>all</button>
        </span>
      </h3>
      {asTable && <TimelineTable moment={moment} />}
      <div
        class="nbe-time"
        ref={box}
        style={{ height: `${height}px` }}
        tabIndex={0}
        role="slider"
        aria-label="Step shown"
        aria-valuemin={history.base}
        aria-valuemax={Math.max(0, end)}
        aria-valuenow={Math.max(0, state.shownStep)}
        aria-valuetext={sayStep(state.shownStep, moment.records.scheduled, moment.records.updated, moment.records.failed)}
        {...pointerHandlers(moment, scale, lanes, setPointed)}
      >
        <canvas ref={bars} aria-hidden="true" />
        <Playhead scale={scale} step={state.shownStep} pointed={pointed} width={width} />
        {pointed >= 0 && <TimelineTip moment={moment} step={pointed} x={LEFT + xOfStep(scale, pointed)} width={width} />}
      </div>
      <Legend />
    </section>
  );
}

function Legend(): JSX.Element {
  return (
    <p class="nbe-legend" aria-hidden="true">
      <span><i style={{ background: "var(--nbe-schedule)" }} />prefill tokens</span>
      <span><i style={{ background: "var(--nbe-forward)" }} />decode tokens</span>
      <span class="nbe-spring" />
      <span><i class="nbe-k-waiting" />waiting</span>
      <span><i class="nbe-k-prefill" />prefill</span>
      <span><i class="nbe-k-decode" />decode</span>
      <span><b class="nbe-bad">▼</b> preempted</span>
      <span><b class="nbe-ok">●</b> finished</span>
      <span><b class="nbe-refused">◆</b> breakpoint</span>
    </p>
  );
}

/** Not on a canvas: it moves with every scrub, and moving an element repaints nothing. */
function Playhead({ scale, step, pointed, width }: { scale: TimeScale; step: number; pointed: number; width: number }): JSX.Element {
  const x = playheadX(scale, step);
  const aside = Math.max(LEFT + 10 - x, Math.min(0, width - 18 - x)); // keeps the number inside
  return (
    <>
      {pointed >= 0 && pointed !== step && (
        <div class="nbe-pointed" style={{ transform: `translateX(${LEFT + xOfStep(scale, pointed)}px)`, width: `${Math.max(2, scale.perStep)}px` }} />
      )}
      {step >= 0 && x >= LEFT - 1 && x <= width + 1 && (
        <div class="nbe-playhead" style={{ transform: `translateX(${x}px)` }}>
          <b style={{ marginLeft: `${x < LEFT + 10 || x > width - 18 ? aside : 0}px` }}>{step}</b>
        </div>
      )}
    </>
  );
}

/** All steps, or the part chosen; a part that showed the live end follows it. */
function scaleOf(zoomed: TimeScale | null, { store, state }: Moment, room: number): TimeScale {
  const { history } = store.fold;
  if (!zoomed) return fitScale(history.base, history.end, room);
  const scale = { ...zoomed, width: room };
  const shown = room / scale.perStep;
  const step = state.shownStep;
  if (store.place === null && !store.playing) return step > scale.from + shown - 1 ? clampScale({ ...scale, from: step - shown + 3 }, history.base, history.end) : scale;
  if (step < scale.from) scale.from = step - 1;
  if (step > scale.from + shown - 2) scale.from = step - shown + 2;
  return clampScale(scale, history.base, history.end);
}

function pointerHandlers(moment: Moment, scale: TimeScale, lanes: ReturnType<typeof layoutLanes>, point: (step: number) => void) {
  const { store } = moment;
  const { history } = store.fold;
  const at = (event: PointerEvent): { x: number; y: number } => {
    const { left, top } = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  };
  const stepAt = (x: number): number => Math.max(history.base, Math.min(history.end - 1, stepOfX(scale, x - LEFT)));
  return {
    onPointerDown: (event: PointerEvent) => {
      const { x, y } = at(event);
      const lane = y >= LANES_TOP ? laneUnder(lanes, scale, history.end, x, y) : -1;
      if (lane >= 0 && lane !== store.selected) store.select(lane);
      (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
      if (x >= LEFT - 12) store.lookAtStep(stepAt(x));
    },
    onPointerMove: (event: PointerEvent) => {
      const { x, y } = at(event);
      const drags = (event.buttons & 1) > 0;
      if (drags) store.lookAtStep(stepAt(x));
      else store.set("hovered", y >= LANES_TOP ? laneUnder(lanes, scale, history.end, x, y) : -1);
      point(x >= LEFT && !drags && stepOfX(scale, x - LEFT) < history.end ? stepAt(x) : -1);
    },
    onPointerLeave: () => {
      store.set("hovered", -1);
      point(-1);
    },
  };
}

/** The wheel zooms with ctrl, and pans sideways; a plain vertical wheel stays the notebook's. */
function useWheel(box: { current: HTMLElement | null }, zoom: (factor: number, x: number) => void, pan: (steps: number) => void, perStep: number): void {
  const latest = useRef({ zoom, pan, perStep });
  latest.current = { zoom, pan, perStep };
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const onWheel = (event: WheelEvent): void => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (!event.ctrlKey && !event.metaKey && !sideways) return;
      event.preventDefault();
      if (sideways) latest.current.pan((event.deltaX || event.deltaY) / latest.current.perStep);
      else latest.current.zoom(Math.exp(-event.deltaY / 300), event.clientX - element.getBoundingClientRect().left);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, []);
}
