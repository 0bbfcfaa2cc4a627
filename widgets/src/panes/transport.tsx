// The transport: move the engine (or play a recording), see where it stands and whether its books add up.

import type { JSX } from "preact";
import type { Fold } from "../core/fold";
import type { State } from "../core/state";
import { Breakpoints } from "./breakpoints";
import { Change } from "./change";
import type { Moment } from "./context";
import { icons } from "./icons";
import { RunUntil } from "./run_until";
import { grouped } from "../core/words";

const BUTTONS = [
  { name: "goto", args: { step: 0 }, label: "Rewind to the start", recording: "Go to the first step", key: "" },
  { name: "back", args: { steps: 1 }, label: "Back one step", recording: "Back one step", key: "b" },
  { name: "run", args: {}, label: "Run", recording: "Play", key: "space" },
  { name: "phase", args: {}, label: "Next phase", recording: "Next phase", key: "n" },
  { name: "step", args: {}, label: "One step", recording: "One step", key: "s" },
] as const;

export function Transport({ moment }: { moment: Moment }): JSX.Element {
  const { store, state } = moment;
  const { fold } = store;
  return (
    <div class="nbe-bar">
      <div class="nbe-buttons" role="group" aria-label={store.isRecording ? "Play the recording" : "Move the engine"}>
        {BUTTONS.map((button) => (
          <TransportButton key={button.name} moment={moment} button={button} />
        ))}
        {store.can("run_until") && <RunUntil store={store} />}
        {store.can("break") && <Breakpoints store={store} />}
        {store.can("set") && <Change moment={moment} />}
      </div>
      <Lamp state={state} busy={isRunning(moment)} />
      <span class="nbe-mono nbe-step">step {Math.max(0, state.phase === "schedule" && store.place !== null ? state.shownStep : state.step)}</span>
      <span class="nbe-spring" />
      <Numbers moment={moment} />
      <Invariants fold={fold} state={state} />
    </div>
  );
}

export function isRunning({ store }: Moment): boolean {
  return store.isRecording ? store.playing : store.status.state === "running";
}

function TransportButton({ moment, button }: { moment: Moment; button: (typeof BUTTONS)[number] }): JSX.Element {
  const { store } = moment;
  const running = button.name === "run" && isRunning(moment);
  const name = running ? "pause" : button.name;
  const says = store.isRecording ? button.recording : looksOnly(moment, button.name) ? `${button.label} (as a view)` : button.label;
  const label = running ? "Pause" : says;
  const title = button.key ? `${label} (${button.key})` : label;
  const usable = store.isRecording ? store.fold.history.length > 0 : !store.gone && (store.can(name) || looksOnly(moment, button.name));
  return (
    <button
      type="button"
      class={button.name === "run" ? "nbe-main" : undefined}
      data-command={name}
      title={title}
      aria-label={label}
      disabled={!usable && !store.gone}
      onClick={() => store.command(name, { ...button.args })}
    >
      {icons[name]}
    </button>
  );
}

/** Without undo in the engine, back and rewind still move the view. */
function looksOnly({ store }: Moment, name: string): boolean {
  return (name === "back" || name === "goto") && !store.can(name);
}

const PHASES = ["schedule", "execute", "update"] as const;

function Lamp({ state, busy }: { state: State; busy: boolean }): JSX.Element {
  const now = PHASES.indexOf(state.phase);
  return (
    <ol class={`nbe-lamp${busy ? " nbe-busy" : ""}`} aria-label={`Next phase: ${state.phase}`}>
      {PHASES.map((phase, i) => (
        <li key={phase} class={i < now ? "nbe-done" : i === now ? "nbe-now" : ""} aria-current={i === now ? "step" : undefined}>
          {phase}
          <span aria-hidden="true">✓</span>
        </li>
      ))}
    </ol>
  );
}

function Numbers({ moment: { store, state } }: { moment: Moment }): JSX.Element {
  const usable = Math.max(0, state.blocks.count - 1);
  const used = usable - state.blocks.numFree;
  const rate = store.place === null && store.status.tokens_per_s ? store.status.tokens_per_s : rateAt(store.fold, state.shownStep);
  return (
    <>
      {rate > 0 && (
        <span class="nbe-number" title="Tokens made a second, over the last steps">
          {rate >= 100 ? Math.round(rate) : rate.toFixed(1)} tok/s
        </span>
      )}
      <span class="nbe-number" title="KV blocks held by requests, of all that can be handed out">
        KV {grouped(used)}/{grouped(usable)} blocks
      </span>
    </>
  );
}

/** Tokens made a second over the last steps, by the engine's clock. */
function rateAt({ history }: Fold, step: number): number {
  const from = Math.max(history.base, step - 16);
  if (step <= from) return 0;
  let made = 0;
  for (let at = from + 1; at <= step; at++) made += history.value("decode", at);
  const seconds = history.value("at", step) - history.value("at", from);
  return seconds > 0 ? made / seconds : 0;
}

function Invariants({ fold: { history }, state }: { fold: Fold; state: State }): JSX.Element | null {
  let step = state.shownStep;
  while (step > history.base && history.value("violations", step) < 0) step--;
  const found = history.length && step >= history.base ? history.value("violations", step) : -1;
  if (found < 0) return null;
  return found === 0 ? (
    <span class="nbe-number nbe-ok" title="Queues, blocks and reference counts add up">
      ● invariants hold
    </span>
  ) : (
    <span class="nbe-number nbe-broken" role="alert">
      ▲ {found} broken in step {step}
    </span>
  );
}
