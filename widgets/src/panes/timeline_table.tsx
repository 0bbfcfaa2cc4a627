// The timeline as a table: the same numbers for those who rather read, the latest step first.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { SERIES } from "../core/history";
import { sayStep } from "../core/sentences";
import { duration } from "../core/words";
import type { Moment } from "./context";

const PAGE = 50;

export function TimelineTable({ moment }: { moment: Moment }): JSX.Element {
  const { store, state } = moment;
  const { history } = store.fold;
  const [asked, setPage] = useState(0);
  const pages = Math.max(1, Math.ceil(history.length / PAGE));
  const page = Math.min(asked, pages - 1);
  const last = history.end - 1 - page * PAGE;
  const steps = Array.from({ length: Math.max(0, Math.min(PAGE, last - history.base + 1)) }, (_, i) => last - i);
  return (
    <div class="nbe-table-box nbe-steps" tabIndex={0} role="group" aria-label="Steps">
      <table class="nbe-table">
        <thead>
          <tr>
            {["step", ...SERIES, "prefill", "decode", "KV blocks", "prefix hits", "what happened"].map((name) => (
              <th key={name} scope="col">{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {steps.map((step) => (
            <tr key={step} class={step === state.shownStep ? "nbe-sel" : undefined} onClick={() => store.lookAtStep(step)}>
              <th scope="row">{step}</th>
              {SERIES.map((name) => <td key={name}>{duration(history.value(name, step) || null)}</td>)}
              <td>{history.value("prefill", step)}</td>
              <td>{history.value("decode", step)}</td>
              <td>{history.value("used", step)}</td>
              <td>{share(history.value("hits", step), history.value("queries", step))}</td>
              <td class="nbe-what">{happened(moment, step)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {pages > 1 && (
        <p class="nbe-pager">
          <button type="button" disabled={page === 0} onClick={() => setPage(page - 1)}>later</button>
          steps {steps[steps.length - 1]}–{last} of {history.end}
          <button type="button" disabled={page === pages - 1} onClick={() => setPage(page + 1)}>earlier</button>
        </p>
      )}
    </div>
  );
}

function happened({ store: { fold } }: Moment, step: number): string {
  const { scheduled, updated, failed } = fold.step(step);
  return sayStep(step, scheduled, updated, failed).replace(/^Step \d+: /, "");
}

function share(hits: number, queries: number): string {
  return queries ? `${Math.round((100 * hits) / queries)}%` : "–";
}
