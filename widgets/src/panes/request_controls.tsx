// What can be done to one request by hand: its priority, its place, its end, its next token.

import type { JSX } from "preact";
import { readBatch } from "../core/batch";
import type { Request } from "../core/state";
import type { Moment } from "./context";
import { Form, NumberField } from "./menu";

export function RequestControls({ moment, request }: { moment: Moment; request: Request }): JSX.Element | null {
  const { store } = moment;
  if (store.place !== null || request.status === "finished" || !store.can("preempt")) return null;
  const { id } = request;
  return (
    <div class="nbe-controls" role="group" aria-label={`Change ${id}`}>
      <NextToken moment={moment} id={id} />
      <div class="nbe-form">
        <button
          type="button"
          title="Take its place and its blocks; it waits at the front"
          disabled={request.status !== "running"}
          onClick={() => store.command("preempt", { request: id })}
        >
          preempt
        </button>
        <button type="button" title="End it here" onClick={() => store.command("abort", { request: id })}>abort</button>
        <Form label="set" submit={({ priority }) => store.command("priority", { request: id, priority: Number(priority ?? 0) })}>
          <NumberField name="priority" label="priority" min={-99} value={request.priority} />
        </Form>
      </div>
    </div>
  );
}

/** Between execute and update: what was sampled, what else it might have been, or anything. */
function NextToken({ moment, id }: { moment: Moment; id: string }): JSX.Element | null {
  const { store, state } = moment;
  const { scheduled, executed } = moment.records;
  const row = scheduled?.request_ids.indexOf(id) ?? -1;
  if (state.phase !== "update" || !executed || !scheduled || !executed.sampled[row]?.length) return null;
  const chosen = executed.sampled[row][executed.sampled[row].length - 1];
  const { top = [] } = (executed.batch && readBatch(executed.batch, scheduled.request_ids, executed.sampled)[row]) || {};
  const edit = (token: number | string): void => store.command("edit_token", { request: id, token });
  return (
    <div class="nbe-form">
      next token <b class="nbe-mono nbe-pre">{store.fold.text(chosen)}</b>
      {top
        .filter(({ token }) => token !== chosen)
        .map(({ token, probability }) => (
          <button key={token} type="button" class="nbe-mono nbe-pre" title={`Take this token instead (probability ${probability.toFixed(3)})`} onClick={() => edit(token)}>
            {store.fold.text(token)}
          </button>
        ))}
      <Form label="take" submit={({ token }) => token && edit(/^\d+$/.test(token) ? Number(token) : token)}>
        <input name="token" size={7} placeholder="text or id" aria-label="Another token" />
      </Form>
    </div>
  );
}
