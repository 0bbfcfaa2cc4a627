// The prefix tree: prompts that begin alike stand in one branch, and where they part it forks.

import type { JSX } from "preact";
import { colorStyle } from "../core/colors";
import { type Branch, partAt, prefixTree } from "../core/prefixes";
import { counted } from "../core/words";
import { blockKind, blockRequest, blockTokens } from "../draw/block_look";
import { choose, hover } from "./blocks";
import type { Moment } from "./context";
import { RequestName } from "./parts";

const MOST_ROOTS = 40;
const MOST_CHIPS = 6;
const TEXT = 72;

export function Prefixes({ moment, height }: { moment: Moment; height: number }): JSX.Element {
  const roots = prefixTree(moment.state);
  const off = moment.store.fold.header?.enable_prefix_caching === false;
  return (
    <div class="nbe-map nbe-table-box nbe-prefixes" tabIndex={0} role="group" aria-label="Prefix tree" style={{ height: `${height}px` }}>
      {off && <p class="nbe-none">Prefix caching is off: nobody shares blocks.</p>}
      {!roots.length && <p class="nbe-none">No block holds anything.</p>}
      <ul>
        {roots.slice(0, MOST_ROOTS).map((branch) => (
          <BranchView key={branch.chain[0][0]} moment={moment} branch={branch} />
        ))}
      </ul>
      {roots.length > MOST_ROOTS && <p class="nbe-none">and {roots.length - MOST_ROOTS} more beginnings</p>}
    </div>
  );
}

function BranchView({ moment, branch }: { moment: Moment; branch: Branch }): JSX.Element {
  const { chain, children, ends } = branch;
  const cut = chain.length > MOST_CHIPS + 1;
  const shown = cut ? [...chain.slice(0, MOST_CHIPS - 1), chain[chain.length - 1]] : chain;
  return (
    <li>
      <p class="nbe-chips">
        {branch.lost && <span class="nbe-refused" title="The block before it was evicted: no prompt can find it">⋯</span>}
        {shown.map((twins, i) => (
          <>
            {cut && i === MOST_CHIPS - 1 && <span class="nbe-quiet">+{chain.length - MOST_CHIPS}</span>}
            {twins.map((block) => <Chip key={block} moment={moment} block={block} />)}
          </>
        ))}
        {ends.map((request) => <RequestName key={request} moment={moment} id={moment.store.fold.id(request)} />)}
      </p>
      <p class="nbe-branch-text">{textOf(moment, chain)}</p>
      {children.length + ends.length > 1 && children.length > 0 && <Parting moment={moment} branch={branch} />}
      {children.length > 0 && (
        <ul>
          {children.map((child) => (
            <BranchView key={child.chain[0][0]} moment={moment} branch={child} />
          ))}
        </ul>
      )}
    </li>
  );
}

function Chip({ moment, block }: { moment: Moment; block: number }): JSX.Element {
  const { store, state } = moment;
  const kind = blockKind(state, block);
  const lit = store.hoveredBlock === block || store.selectedBlock === block;
  const refs = state.blocks.refs[block];
  return (
    <button
      type="button"
      class={`nbe-mono nbe-chip-${kind}${lit ? " nbe-lit" : ""}`}
      style={colorStyle(blockRequest(state, block))}
      data-block={block}
      title={`block ${block}: ${kind === "cached" ? "cached, held by nobody" : `held by ${counted(refs, "request")}`}`}
      onPointerEnter={() => hover(moment, block)}
      onPointerLeave={() => hover(moment, -1)}
      onFocus={() => hover(moment, block)}
      onClick={() => choose(moment, block)}
    >
      {block}
      {refs > 1 && <sup>{refs}</sup>}
    </button>
  );
}

/** Where the ways part, and by which token. */
function Parting({ moment, branch }: { moment: Moment; branch: Branch }): JSX.Element {
  const { fold } = moment.store;
  const size = fold.header?.block_size ?? 16;
  const lists = branch.children.map(({ chain }) => blockTokens(moment.state, chain[0][0], size));
  const at = partAt(lists);
  const next = lists.slice(0, 6).map((list) => (at < list.length ? fold.text(list[at]) : ""));
  const place = (branch.first + branch.chain.length) * size + at;
  return (
    <p class="nbe-parting">
      {branch.children.length > 1 ? (
        <>
          part at token <b>{place}</b>, in blocks <b>{branch.children.slice(0, 6).map(({ chain }) => chain[0][0]).join(", ")}</b>:{" "}
          {next.map((text, i) => <code key={i}>{text || "(end)"}</code>)}
        </>
      ) : (
        <>one ends here; the other goes on in block <b>{branch.children[0].chain[0][0]}</b></>
      )}
    </p>
  );
}

function textOf({ state, store }: Moment, chain: number[][]): string {
  const size = store.fold.header?.block_size ?? 16;
  let text = "";
  for (const [block] of chain) {
    text += blockTokens(state, block, size).map((token) => store.fold.text(token)).join("");
    if (text.length > TEXT) break;
  }
  text = text.replace(/\s+/g, " ").trim();
  return text.length > TEXT ? `${text.slice(0, TEXT)}…` : text;
}
