// A view of a store in an element: the whole Lab, or one pane of it.

import { type JSX, render } from "preact";
import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import { sayStep } from "./core/sentences";
import { type Theme, isDark, readTheme, watchTheme } from "./draw/theme";
import type { Store } from "./host/store";
import { Blocks } from "./panes/blocks";
import { type Moment, momentOf } from "./panes/context";
import { Inspector } from "./panes/inspector";
import { onKey } from "./panes/keys";
import { Empty, Notices } from "./panes/notices";
import { Queues } from "./panes/queues";
import { Timeline } from "./panes/timeline";
import { Transport } from "./panes/transport";

export type Pane = "lab" | "queues" | "blocks" | "timeline" | "inspector";

/** Draw `pane` in `element` until the returned function is called. */
export function mount(element: HTMLElement, store: Store, pane: Pane): () => void {
  const root = document.createElement("div");
  root.className = `nbe-lab nbe-only-${pane}`;
  root.dataset.theme = isDark(element) ? "dark" : "light";
  element.append(root);
  // JupyterLab's shortcuts listen above the widget: keys pressed inside it are its own.
  const swallow = (event: Event): void => event.stopPropagation();
  root.addEventListener("keydown", swallow);
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  render(<View root={root} store={store} pane={pane} />, root);
  store.wire?.hello();
  return () => {
    render(null, root);
    root.removeEventListener("keydown", swallow);
    root.remove();
  };
}

function View({ root, store, pane }: { root: HTMLElement; store: Store; pane: Pane }): JSX.Element {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const [theme, setTheme] = useState<Theme | null>(null);
  useEffect(() => store.subscribe(() => redraw(0)), [store]);
  useEffect(() => {
    const read = (): void => {
      if (root.parentElement) root.dataset.theme = isDark(root) ? "dark" : "light";
      setTheme(readTheme(root));
    };
    read();
    return watchTheme(() => requestAnimationFrame(read));
  }, [root]);
  if (!theme) return <div class="nbe-empty" />;
  const empty = !store.fold.header || (!store.fold.length && store.gone);
  if (empty) return <Empty store={store} />;
  return <Panes moment={momentOf(store, theme)} pane={pane} />;
}

function Panes({ moment, pane }: { moment: Moment; pane: Pane }): JSX.Element {
  const whole = pane === "lab";
  const { store } = moment;
  const quiet = whole && !store.fold.length;
  return (
    <div class="nbe-root" tabIndex={-1} role="group" aria-label="nbengine Lab" onKeyDown={(event) => onKey(event, store)}>
      {whole && <Transport moment={moment} />}
      {whole && <Notices moment={moment} />}
      {quiet && <Empty store={store} />}
      {!quiet && pane !== "timeline" && (
        <div class="nbe-panes">
          {(whole || pane === "queues") && <Queues moment={moment} />}
          {(whole || pane === "blocks") && <Blocks moment={moment} />}
          {(whole || pane === "inspector") && <Inspector moment={moment} />}
        </div>
      )}
      {!quiet && (whole || pane === "timeline") && <Timeline moment={moment} />}
      {whole && <Spoken moment={moment} />}
    </div>
  );
}

const SPEAK_MS = 600;

/** One sentence a step for screen readers, spoken once the picture stands still. */
function Spoken({ moment }: { moment: Moment }): JSX.Element {
  const { records, state, store } = moment;
  const [said, say] = useState("");
  const text = useRef("");
  text.current = state.error
    ? `Step ${state.step} failed: ${state.error}`
    : `${sayStep(records.step, records.scheduled, records.updated)}${store.status.reason ? ` ${store.status.reason}.` : ""}`;
  useEffect(() => {
    const timer = setTimeout(() => say(text.current), SPEAK_MS);
    return () => clearTimeout(timer);
  }, [records.step, state.phase, state.error, store.status.reason]);
  return (
    <p class="nbe-spoken" aria-live="polite">
      {said}
    </p>
  );
}
