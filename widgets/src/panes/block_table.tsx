// The block map as a table: the same facts for those who rather read, a hundred blocks a page.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { blockRequest } from "../draw/block_look";
import { colorStyle } from "../core/colors";
import { blockFacts } from "./block_words";
import type { Moment } from "./context";

const PAGE = 100;

export function BlockTable({ moment, height }: { moment: Moment; height: number }): JSX.Element {
  const { count } = moment.state.blocks;
  const pages = Math.max(1, Math.ceil(count / PAGE));
  const [asked, setPage] = useState(0);
  const page = Math.min(asked, pages - 1);
  const queue = new Map(moment.state.blocks.freeQueue().map((block, i) => [block, i + 1]));
  const blocks = Array.from({ length: Math.max(0, Math.min(PAGE, count - page * PAGE)) }, (_, i) => page * PAGE + i);
  return (
    <div class="nbe-map nbe-table-box" tabIndex={0} style={{ height: `${height}px` }}>
      <table class="nbe-table">
        <thead>
          <tr>
            {["block", "state", "held by", "refs", "tokens", "to go", "hash", "text"].map((name) => (
              <th key={name} scope="col">{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {blocks.map((block) => (
            <TableRow key={block} moment={moment} block={block} toGo={queue.get(block)} />
          ))}
        </tbody>
      </table>
      {pages > 1 && (
        <p class="nbe-pager">
          <button type="button" disabled={page === 0} onClick={() => setPage(page - 1)}>previous</button>
          blocks {page * PAGE}–{page * PAGE + blocks.length - 1} of {count}
          <button type="button" disabled={page === pages - 1} onClick={() => setPage(page + 1)}>next</button>
        </p>
      )}
    </div>
  );
}

/** toGo: its place in the free queue, 1 for the next that is taken. */
function TableRow({ moment, block, toGo }: { moment: Moment; block: number; toGo?: number }): JSX.Element {
  const facts = blockFacts(moment, block);
  const request = block > 0 ? blockRequest(moment.state, block) : -1;
  return (
    <tr class={block === moment.store.selectedBlock ? "nbe-sel" : undefined} onClick={() => moment.store.set("selectedBlock", block)}>
      <th scope="row">{block}</th>
      <td>{facts.state}</td>
      <td>
        {request >= 0 && <i class="nbe-dot" style={colorStyle(request)} />} {facts.owners.join(", ") || (facts.last && `(${facts.last})`)}
      </td>
      <td>{facts.refs || ""}</td>
      <td>{facts.filled || ""}</td>
      <td>{toGo}</td>
      <td class="nbe-mono">{facts.hash.slice(0, 8)}</td>
      <td class="nbe-cut" title={facts.text}>{facts.text.trim().slice(0, 60)}</td>
    </tr>
  );
}
