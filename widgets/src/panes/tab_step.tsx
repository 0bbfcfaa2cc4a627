// Step: what the scheduler put together and how long each part took, field by field.

import type { ComponentChildren, JSX } from "preact";
import type { Scheduled } from "../core/records";
import { sayStep } from "../core/sentences";
import { takenBy } from "../core/story";
import { counted, duration, ranges, visible } from "../core/words";
import type { Moment } from "./context";
import { Facts, RequestName } from "./parts";

const MOST_ROWS = 64;
const MOST_NAMES = 16;

export function StepTab({ moment }: { moment: Moment }): JSX.Element {
  const { records } = moment;
  const { scheduled } = records;
  if (!scheduled && records.failed) return <p class="nbe-say nbe-broken">Step {records.step} failed in {records.failed.phase}: {records.failed.error}</p>;
  if (!scheduled) return <p class="nbe-none">No step has run yet.</p>;
  return (
    <>
      <p class="nbe-title">Step {records.step}</p>
      <p class="nbe-say">{sayStep(records.step, scheduled, records.updated).replace(/^Step \d+: /, "")}</p>
      {records.failed && <p class="nbe-say nbe-broken">failed in {records.failed.phase}: {records.failed.error}</p>}
      <Facts facts={factsOf(moment, scheduled)} />
      <p class="nbe-title">SchedulerOutput</p>
      <Facts facts={outputOf(moment, scheduled)} />
      <p class="nbe-title">num_scheduled_tokens</p>
      <Rows moment={moment} scheduled={scheduled} />
    </>
  );
}

function factsOf({ store, records }: Moment, scheduled: Scheduled): [string, ComponentChildren][] {
  const { executed, updated, step } = records;
  const total = scheduled.tokens.reduce((sum, tokens) => sum + tokens, 0);
  const ops = [...(scheduled.block_ops ?? []), ...(updated?.block_ops ?? [])];
  const count = (op: string): number => ops.filter(([kind]) => kind === op).length;
  const kinds: [string, string][] = [["a", "taken"], ["h", "hit"], ["c", "cached"], ["e", "evicted"], ["b", "freed, kept"], ["f", "freed, bare"]];
  const moved = kinds.filter(([op]) => count(op)).map(([op, word]) => `${count(op)} ${word}`);
  const facts: [string, ComponentChildren][] = [
    ["tokens", `${total} of ${store.fold.history.value("budget", step)}: ${store.fold.history.value("prefill", step)} prefill, ${store.fold.history.value("decode", step)} decode`],
    ["requests", counted(scheduled.request_ids.length, "request")],
    ["schedule", duration(scheduled.schedule_s)],
  ];
  if (executed) {
    facts.push(
      ["execute", `${duration(executed.execute_s)}: prepare ${duration(executed.prepare_s)}, forward ${duration(executed.forward_s)}, sample ${duration(executed.sample_s)}`],
      ["thread", executed.thread ?? "MainThread"],
    );
  }
  if (updated) facts.push(["update", duration(updated.update_s)]);
  facts.push(["blocks", moved.join(", ") || "untouched"]);
  if (updated?.finished?.length) facts.push(["finished", updated.finished.map(([id, why]) => `${id} (${why})`).join(", ")]);
  for (const text of updated?.violations ?? []) facts.push(["broken", <span class="nbe-broken">{text}</span>]);
  return facts;
}

/** The plan field by field, as the executor gets it: all of a request that it has not seen (or forgot), the news of the rest. */
function outputOf(moment: Moment, scheduled: Scheduled): [string, ComponentChildren][] {
  const of = (kind: string): string[] => scheduled.request_ids.filter((id) => came(moment, id) === kind);
  const names = (ids: string[]): ComponentChildren => <Names moment={moment} ids={ids} />;
  return [
    ["scheduled_new_reqs", names(of("new"))],
    ["scheduled_resumed_reqs", names(of("resumed"))],
    ["scheduled_cached_reqs", names(of("running"))],
    ["total_num_scheduled_tokens", scheduled.tokens.reduce((sum, tokens) => sum + tokens, 0)],
    ["preempted_req_ids", names(scheduled.preempted ?? [])],
    ["finished_req_ids", names(scheduled.finished_req_ids ?? [])],
    ["num_common_prefix_blocks", scheduled.num_common_prefix_blocks ?? 0],
  ];
}

function Names({ moment, ids }: { moment: Moment; ids: string[] }): JSX.Element {
  if (!ids.length) return <span class="nbe-quiet">none</span>;
  return (
    <span class="nbe-names">
      {ids.slice(0, MOST_NAMES).map((id) => <RequestName key={id} moment={moment} id={id} />)}
      {ids.length > MOST_NAMES && <span class="nbe-quiet">and {ids.length - MOST_NAMES} more</span>}
    </span>
  );
}

function came(moment: Moment, id: string): string {
  return CAME[moment.decisions.get(id)?.[1] ?? ""] ?? "running";
}

const CAME: Record<string, string> = { admitted: "new", resumed: "resumed" };

function Rows({ moment, scheduled }: { moment: Moment; scheduled: Scheduled }): JSX.Element {
  const { executed } = moment.records;
  const { fold } = moment.store;
  const left = scheduled.request_ids.length - MOST_ROWS;
  return (
    <table class="nbe-table">
      <thead>
        <tr>{["request", "is", "before", "tokens", "took", "sampled"].map((name) => <th key={name} scope="col">{name}</th>)}</tr>
      </thead>
      <tbody>
        {scheduled.request_ids.slice(0, MOST_ROWS).map((id, i) => (
          <tr key={id}>
            <td><RequestName moment={moment} id={id} /></td>
            <td>{came(moment, id)}</td>
            <td>{scheduled.computed[i]}</td>
            <td>{scheduled.tokens[i]}</td>
            <td>{ranges(takenBy(scheduled.block_ops ?? [], id), 4)}</td>
            <td class="nbe-mono nbe-pre">{executed ? visible(executed.sampled[i]?.map((token) => fold.text(token)).join("") ?? "") || "–" : ""}</td>
          </tr>
        ))}
        {left > 0 && <tr><td colSpan={6} class="nbe-quiet">and {left} more</td></tr>}
      </tbody>
    </table>
  );
}
