// The breakpoints: listed, switched on and off, edited, removed, and made.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Breakpoint } from "../host/channel";
import type { Store } from "../host/store";
import { Form, Menu, NumberField, Select } from "./menu";

const EVENTS = [
  ["preempted", "a request is preempted"],
  ["admitted", "a request is admitted"],
  ["resumed", "a request is resumed"],
  ["finished", "a request finishes"],
  ["chunked", "a prefill is chunked"],
  ["prefix_hit", "a prefix is found"],
  ["prefix_miss", "no prefix is found"],
  ["evicted", "a cached block is evicted"],
  ["step_slower_than", "a step is slower than …"],
  ["failed", "a phase fails"],
  ["changed", "something is changed by hand"],
  ["", "it stands there (below)"],
] as const;
const MEASURES = [["", "always"], ["free_blocks", "free blocks"], ["waiting", "waiting"], ["running", "running"]] as const;
const PHASES = [["", "any phase"], "schedule", "execute", "update"] as const;

export function Breakpoints({ store }: { store: Store }): JSX.Element {
  const points = store.status.breakpoints ?? [];
  const on = points.filter((point) => point.enabled).length;
  return (
    <Menu name="break" label={<>◆ {on > 0 && <b>{on}</b>} break…</>} title="Breakpoints">
      {() => <Panel store={store} points={points} />}
    </Menu>
  );
}

function Panel({ store, points }: { store: Store; points: Breakpoint[] }): JSX.Element {
  const [edited, edit] = useState<number | null>(null);
  const [made, setMade] = useState(0); // a form that was used gives way to a fresh one
  const tell = (action: string, number: number): void => store.command("break", { action, number });
  const point = points.find(({ number }) => number === edited);
  return (
    <>
      {!points.length && <p class="nbe-none">No breakpoint yet. The engine stops where all that you choose here holds.</p>}
      <ul class="nbe-points">
        {points.map(({ number, text, enabled, hits, error }) => (
          <li key={number} class={number === edited ? "nbe-sel" : undefined} data-breakpoint={number}>
            <label>
              <input type="checkbox" checked={enabled} onChange={() => tell(enabled ? "disable" : "enable", number)} />
              {number}: {text}
              {error && <span class="nbe-broken"> {error}</span>}
            </label>
            <span class="nbe-quiet" title="Times it stopped the engine">{hits}×</span>
            <button type="button" aria-label={`Edit breakpoint ${number}`} title="Edit" onClick={() => edit(number === edited ? null : number)}>
              ✎
            </button>
            <button type="button" aria-label={`Remove breakpoint ${number}`} title="Remove" onClick={() => tell("remove", number)}>
              ×
            </button>
          </li>
        ))}
      </ul>
      <Editor
        key={point ? `edit ${point.number}` : made}
        store={store}
        point={point}
        done={() => {
          edit(null);
          setMade(made + 1);
        }}
      />
    </>
  );
}

function Editor({ store, point, done }: { store: Store; point?: Breakpoint; done(): void }): JSX.Element {
  const [event, setEvent] = useState<string>(point ? (point.event ?? "") : EVENTS[0][0]);
  const [was, sign = "<", limit = 4] = point?.condition ?? [];
  const [measure, setMeasure] = useState<string>(was ?? "");
  const submit = (values: Record<string, string>): void => {
    const what = criteriaOf(values, point);
    store.command("break", point ? { action: "edit", number: point.number, ...what } : { action: "add", ...what });
    done();
  };
  return (
    <Form label={point ? `save ${point.number}` : "add"} submit={submit}>
      <Select name="event" label="stop when" value={event} options={EVENTS} changed={setEvent} wide />
      {event === "step_slower_than" && <NumberField name="seconds" label="seconds" step="any" value={point?.seconds ?? 0.1} />}
      <label>
        request
        <input name="request" size={6} placeholder="any" defaultValue={point?.request} />
      </label>
      <NumberField name="block" label="block" placeholder="any" min={1} value={point?.block} />
      <NumberField name="step" label="step" placeholder="any" value={point?.step} />
      <Select name="phase" label="before" value={point?.phase ?? ""} options={PHASES} />
      <Select name="measure" label="if" value={measure} options={MEASURES} changed={setMeasure} />
      {measure && <Select name="sign" value={sign} options={["<", ">"]} />}
      {measure && <NumberField name="limit" value={limit} />}
      <NumberField name="count" label="from hit no." min={1} value={point?.count ?? 1} />
      <label>
        <input type="checkbox" name="once" value="yes" defaultChecked={point?.once} /> once
      </label>
    </Form>
  );
}

/** What the form says. An edited one hands over its empty fields too, and keeps a condition that was written in Python. */
function criteriaOf(values: Record<string, string>, point?: Breakpoint): Record<string, unknown> {
  const number = (name: string): number | undefined => (values[name] === undefined ? undefined : Number(values[name]));
  const { measure, sign, event, request, phase } = values;
  const condition = measure ? [measure, sign, number("limit") ?? 0] : undefined;
  const what = { event, request, phase, step: number("step"), block: number("block"), seconds: number("seconds"), condition };
  const given = Object.entries(what).filter(([name, value]) => value !== undefined || (point && (name !== "condition" || point.condition)));
  return { ...Object.fromEntries(given.map(([name, value]) => [name, value ?? null])), count: number("count") ?? 1, once: values.once === "yes" };
}
