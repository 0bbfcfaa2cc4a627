// The inspector: one request, the step, its tensors, why, and the source line that decided.

import type { JSX } from "preact";
import type { Tab } from "../host/store";
import { BatchTab } from "./tab_batch";
import type { Moment } from "./context";
import { RequestTab } from "./tab_request";
import { SourceTab } from "./tab_source";
import { StepTab } from "./tab_step";
import { WhyTab } from "./tab_why";

const TABS: { name: Tab; label: string; title: string; Body: (props: { moment: Moment }) => JSX.Element }[] = [
  { name: "request", label: "Request", title: "The chosen request: its text, times and blocks", Body: RequestTab },
  { name: "step", label: "Step", title: "What the scheduler put together in this step", Body: StepTab },
  { name: "batch", label: "Batch", title: "The tensors of this step", Body: BatchTab },
  { name: "why", label: "Why", title: "Every decision of this step, with its reason", Body: WhyTab },
  { name: "source", label: "Source", title: "The line of the engine that decided", Body: SourceTab },
];

export function Inspector({ moment }: { moment: Moment }): JSX.Element {
  const { store } = moment;
  const chosen = TABS.findIndex(({ name }) => name === store.tab);
  const { Body, label } = TABS[chosen];
  const move = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const next = (chosen + by + TABS.length) % TABS.length;
    store.set("tab", TABS[next].name);
    (event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("[role=tab]")[next]?.focus();
  };
  return (
    <section class="nbe-pane nbe-inspector" aria-label="Inspector">
      <div class="nbe-tabs" role="tablist" aria-label="Inspector" onKeyDown={move}>
        {TABS.map(({ name, label: text, title }) => (
          <button
            key={name}
            type="button"
            role="tab"
            title={title}
            aria-selected={name === store.tab}
            tabIndex={name === store.tab ? 0 : -1}
            onClick={() => store.set("tab", name)}
          >
            {text}
          </button>
        ))}
      </div>
      <div class="nbe-scroll nbe-inside" role="tabpanel" aria-label={label} tabIndex={0}>
        <Body moment={moment} />
      </div>
    </section>
  );
}
