// Where things stand, in a line that is always there, so that nothing moves when it changes: paused and why, running, looking
// at the past, no kernel. And the states that need more than a line: nothing yet, a failed step, a busy kernel.

import type { JSX } from "preact";
import type { Moment } from "./context";

/** In place of the panes while there is nothing to show. */
export function Empty({ store }: { store: Moment["store"] }): JSX.Element {
  if (store.gone) {
    return (
      <div class="nbe-empty" role="status">
        <b>The kernel of this Lab is gone</b>
        <span>No recording was kept here. Run the cell again for a live Lab, or open a saved trace.</span>
      </div>
    );
  }
  if (!store.fold.header) {
    return (
      <div class="nbe-empty" role="status">
        <span class="nbe-wait" aria-hidden="true" />
        <b>Waiting for the engine's first record</b>
        <span>{store.wire?.liveness() === "between" ? "The kernel is busy; it answers when its cell ends." : "This takes a moment."}</span>
      </div>
    );
  }
  return (
    <div class="nbe-empty" role="status">
      <b>The engine stands still and empty</b>
      <span>
        {store.fold.header.model} · {store.fold.header.num_blocks} blocks of {store.fold.header.block_size} tokens. Add a request:
      </span>
      <code>dbg.add("Tell me about Rome", max_tokens=40)</code>
    </div>
  );
}

export function Notices({ moment }: { moment: Moment }): JSX.Element {
  const { store } = moment;
  const past = store.place !== null && !store.isRecording;
  return (
    <>
      {store.gone ? <Gone store={store} /> : past ? <Past moment={moment} /> : !moment.state.error && <Standing moment={moment} />}
      {moment.state.error && <Failure moment={moment} />}
      <Busy moment={moment} />
    </>
  );
}

function Standing({ moment: { store } }: { moment: Moment }): JSX.Element {
  const { reason = "", busy } = store.status;
  const now = store.isRecording ? "recording" : (store.status.state ?? "idle");
  const texts: Record<string, string> = {
    recording: "recording: the buttons play it",
    running: busy ? "running; controls arrive at the next phase" : "running",
    paused: !reason ? "paused" : /^paused/.test(reason) ? reason : `paused: ${reason}`,
  };
  const text = texts[now] ?? (reason || now);
  const kind = reason && now !== "running" ? " nbe-told" : " nbe-quiet";
  return (
    <div class={`nbe-banner nbe-standing${kind}`}>
      <span class="nbe-chip" title={text}>{text}</span>
    </div>
  );
}

function Past({ moment: { store, state } }: { moment: Moment }): JSX.Element {
  const { live } = store.fold;
  const step = state.shownStep;
  return (
    <div class="nbe-banner nbe-standing" role="status">
      <span>
        viewing step <b>{step}</b> of {Math.max(live.shownStep, step)}; the engine is at <b>{live.step}</b>
      </span>
      <button type="button" title="Show what the engine holds now (End)" onClick={() => store.backToNow()}>back to now</button>
      {store.can("goto") && (
        <button type="button" onClick={() => store.command("goto", { step: step + 1 })} title="Undo the later steps in the engine itself">
          rewind to here
        </button>
      )}
    </div>
  );
}

function Gone({ store }: { store: Moment["store"] }): JSX.Element {
  return (
    <div class="nbe-banner nbe-standing nbe-banner-warn" role="status">
      <span>{store.status.state === "closed" ? "engine let go" : "kernel gone"}: this is the saved trace. The buttons play it.</span>
    </div>
  );
}

function Failure({ moment: { store, state, records } }: { moment: Moment }): JSX.Element {
  const trace = records.failed?.traceback?.trim() ?? "";
  const last = trace.split("\n").pop() || state.error;
  return (
    <div class="nbe-banner nbe-banner-bad" role="alert">
      <span>
        step <b>{records.failed?.step ?? state.step}</b> failed in <b>{records.failed?.phase ?? state.phase}</b>: <code>{last}</code>
      </span>
      {!store.isRecording && store.place === null && <span class="nbe-quiet">the engine stands before this phase again</span>}
      {trace && (
        <details>
          <summary>traceback</summary>
          <pre>{trace}</pre>
        </details>
      )}
    </div>
  );
}

function Busy({ moment: { store } }: { moment: Moment }): JSX.Element | null {
  if (store.isRecording || store.gone) return null;
  const { message } = store.status;
  if (message) return <div class="nbe-banner" role="status">{message}</div>;
  if (store.wire?.liveness() !== "between") return null;
  return (
    <div class="nbe-banner" role="status">
      <span>
        controls wait until the running cell ends; <code>dbg.play()</code> runs the engine so that they work at once
      </span>
    </div>
  );
}
