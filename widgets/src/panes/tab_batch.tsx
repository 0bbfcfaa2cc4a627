// Batch: the step's tensors, flat over the batch, with their query boundaries and what was sampled at each.

import type { JSX } from "preact";
import { type BatchRow, readBatch } from "../core/batch";
import { percent, ranges, visible } from "../core/words";
import type { Moment } from "./context";
import { RequestName } from "./parts";

const MOST_TOKENS = 160;

export function BatchTab({ moment }: { moment: Moment }): JSX.Element {
  const { records } = moment;
  const { scheduled, executed } = records;
  if (!scheduled && records.failed) return <p class="nbe-none">Step {records.step} failed before it had a batch.</p>;
  if (!scheduled) return <p class="nbe-none">No step has run yet.</p>;
  if (!executed) return <p class="nbe-none">Step {records.step} has not been executed yet: its tensors do not exist.</p>;
  if (!executed.batch) return <p class="nbe-none">The tensors of step {records.step} were not kept.</p>;
  const rows = readBatch(executed.batch, scheduled.request_ids, executed.sampled);
  const total = rows.reduce((sum, row) => sum + row.tokens.length, 0);
  let left = MOST_TOKENS;
  return (
    <>
      <p class="nbe-title">Batch of step {records.step} <span class="nbe-quiet">{total} tokens, {rows.length} requests</span></p>
      <table class="nbe-table nbe-batch">
        <thead>
          <tr><th scope="col">token</th><th scope="col">id</th><th scope="col">position</th><th scope="col">slot</th></tr>
        </thead>
        {rows.map((row) => {
          const take = Math.max(0, Math.min(left, row.tokens.length));
          left -= take;
          return take ? <Query key={row.request} moment={moment} row={row} take={take} /> : null;
        })}
      </table>
      {total > MOST_TOKENS && <p class="nbe-none">and {total - MOST_TOKENS} more tokens</p>}
    </>
  );
}

function Query({ moment, row, take }: { moment: Moment; row: BatchRow; take: number }): JSX.Element {
  const { fold } = moment.store;
  const size = fold.header?.block_size ?? 16;
  const table = moment.state.request(fold.tables.ids.find(row.request))?.blockIds ?? [];
  return (
    <tbody>
      <tr class="nbe-query">
        <th colSpan={4} scope="rowgroup">
          <RequestName moment={moment} id={row.request} />{" "}
          <span class="nbe-quiet">
            {row.tokens.length > 1 ? `queries ${row.start}–${row.start + row.tokens.length - 1}` : `query ${row.start}`}, sequence length {row.seqLen}
            {table.length > 0 && `, block table ${ranges(table, 12)}`}
          </span>
        </th>
      </tr>
      {Array.from({ length: take }, (_, i) => (
        <tr key={i}>
          <td class="nbe-mono nbe-pre">{visible(fold.text(row.tokens[i]))}</td>
          <td>{row.tokens[i]}</td>
          <td>{row.positions[i]}</td>
          <td title={`block ${Math.floor(row.slots[i] / size)}, place ${row.slots[i] % size}`}>{row.slots[i]}</td>
        </tr>
      ))}
      <tr class="nbe-sampled">
        <td colSpan={4}>
          {row.sampled.length ? (
            <>
              <span>sampled <b class="nbe-mono nbe-pre">{visible(row.sampled.map((token) => fold.text(token)).join(""))}</b></span>
              {row.top.map(({ token, probability }) => (
                <span
                  key={token}
                  class={`nbe-alt${row.sampled.includes(token) ? " nbe-taken" : ""}`}
                  style={{ "--share": percent(probability).replace(/[<>]/, "") }}
                  title={`token ${token}, probability ${probability.toFixed(4)}`}
                >
                  <span class="nbe-mono nbe-pre">{visible(fold.text(token))}</span> {percent(probability)}
                </span>
              ))}
            </>
          ) : (
            <span class="nbe-quiet">a chunk: nothing sampled</span>
          )}
        </td>
      </tr>
    </tbody>
  );
}
