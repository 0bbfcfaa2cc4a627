// Request: its text, its block table, its times.

import type { ComponentChildren, JSX } from "preact";
import type { Request } from "../core/state";
import { sayDecision } from "../core/sentences";
import { counted, duration } from "../core/words";
import type { Moment } from "./context";
import { RequestControls } from "./request_controls";
import { Facts, RequestName, TextLegend, TokenText } from "./parts";

export function RequestTab({ moment }: { moment: Moment }): JSX.Element {
  const { store, state, decisions } = moment;
  const request = state.request(store.selected);
  if (!request) return <ChooseOne moment={moment} />;
  const decision = decisions.get(request.id);
  return (
    <>
      <p class="nbe-title">
        <RequestName moment={moment} id={request.id} />{" "}
        <span class="nbe-quiet">{request.finishReason ? `finished: ${request.finishReason}` : request.status}</span>
      </p>
      {decision && request.status !== "finished" && <p class="nbe-say">{sayDecision(decision).text}</p>}
      <RequestControls moment={moment} request={request} />
      <TokenText moment={moment} request={request} />
      <TextLegend />
      <Facts facts={factsOf(moment, request)} />
      <BlockChips moment={moment} request={request} />
    </>
  );
}

function ChooseOne({ moment }: { moment: Moment }): JSX.Element {
  const { state, store } = moment;
  const some = [...state.running, ...state.waiting, ...state.finished].slice(0, 12);
  if (!some.length) return <p class="nbe-none">No request has come yet.</p>;
  return (
    <>
      <p class="nbe-none">Choose a request, here or in any pane.</p>
      <p class="nbe-names">{some.map((index) => <RequestName key={index} moment={moment} id={store.fold.id(index)} />)}</p>
    </>
  );
}

function factsOf({ state }: Moment, request: Request): [string, ComponentChildren][] {
  const made = request.numTokens - request.numPrompt;
  const ttft = request.firstAt === null ? null : request.firstAt - request.addedAt;
  const itl = made > 1 && request.firstAt !== null && request.lastAt !== null ? (request.lastAt - request.firstAt) / (made - 1) : null;
  const facts: [string, ComponentChildren][] = [
    ["tokens", `${request.numPrompt} prompt + ${made} output, at most ${request.maxTokens}`],
    ["computed", `${request.computed} of ${request.numTokens}`],
    ["prefix hit", request.cached ? `${counted(request.cached, "token")} at its last admission` : "none"],
    ["first token", ttft === null ? "not yet" : `after ${duration(ttft)} of work (TTFT)`],
    ["between tokens", itl === null ? "–" : `${duration(itl)} of work (ITL)`],
    ["preemptions", String(request.preemptions)],
  ];
  const place = state.waiting.indexOf(request.index);
  if (place >= 0) facts.push(["in the queue", place === 0 ? "next" : `${place} before it`]);
  if (request.priority) facts.push(["priority", String(request.priority)]);
  const options = Object.entries(request.params).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
  if (options.length) facts.push(["sampling", options.join(", ")]);
  return facts;
}

const MOST_CHIPS = 80;

function BlockChips({ moment: { store, state }, request }: { moment: Moment; request: Request }): JSX.Element {
  const shown = request.blockIds.slice(0, MOST_CHIPS);
  return (
    <>
      <p class="nbe-title">Block table <span class="nbe-quiet">{counted(request.blockIds.length, "block")}, in order</span></p>
      {!shown.length && <p class="nbe-none">holds no block</p>}
      <p class="nbe-chips">
        {shown.map((block) => (
          <button
            key={block}
            type="button"
            class={`nbe-mono${store.hoveredBlock === block ? " nbe-lit" : ""}${state.blocks.refs[block] > 1 ? " nbe-shared" : ""}`}
            title={`block ${block}${state.blocks.refs[block] > 1 ? `, shared by ${state.blocks.refs[block]}` : ""}`}
            onPointerEnter={() => store.set("hoveredBlock", block)}
            onPointerLeave={() => store.set("hoveredBlock", -1)}
            onClick={() => store.set("selectedBlock", block)}
          >
            {block}
          </button>
        ))}
        {request.blockIds.length > shown.length && <span class="nbe-quiet">and {request.blockIds.length - shown.length} more</span>}
      </p>
    </>
  );
}
