// Small parts that several tabs use.

import type { ComponentChildren, JSX } from "preact";
import { colorStyle } from "../core/colors";
import type { Request } from "../core/state";
import type { Moment } from "./context";

export function Facts({ facts }: { facts: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="nbe-facts">
      {facts.map(([name, value]) => (
        <>
          <dt key={name}>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

/** A request's id with its colour; hovering lights it up, a click chooses it. */
export function RequestName({ moment: { store }, id }: { moment: Moment; id: string }): JSX.Element {
  const index = store.fold.tables.ids.find(id);
  return (
    <button
      type="button"
      class={`nbe-name nbe-mono${store.hovered === index ? " nbe-lit" : ""}`}
      style={colorStyle(index)}
      title={id}
      onClick={() => store.select(index)}
      onPointerEnter={() => store.set("hovered", index)}
      onPointerLeave={() => store.set("hovered", -1)}
    >
      <i class="nbe-dot" />
      {id}
    </button>
  );
}

/** Text in which ** ** marks what matters. */
export function Marked({ text }: { text: string }): JSX.Element {
  return <>{text.split("**").map((part, i) => (i % 2 ? <b key={i}>{part}</b> : part))}</>;
}

export function SourceLink({ moment: { store }, file, line }: { moment: Moment; file: string; line: number }): JSX.Element | null {
  if (!line) return null;
  return (
    <button type="button" class="nbe-link nbe-mono" title={file || STOCK} onClick={() => store.openSource(file, line)}>
      {sourceName(file)}:{line}
    </button>
  );
}

const STOCK = "nbengine/scheduler/scheduler.py"; // what a decision without a file means

export function sourceName(file: string): string {
  return (file || STOCK).split(/[\\/]/).pop() ?? "";
}

const MOST_TOKENS = 600;

interface Run {
  kind: string;
  text: string;
}

/** The request's text, coloured by how each token came to be computed. */
export function TokenText({ moment: { store }, request }: { moment: Moment; request: Request }): JSX.Element {
  const from = Math.max(0, request.numTokens - MOST_TOKENS);
  const runs: Run[] = [];
  for (let i = from; i < request.numTokens; i++) {
    const kind = tokenKind(request, i);
    const text = store.fold.text(request.tokens[i]);
    const last = runs[runs.length - 1];
    if (last?.kind === kind) last.text += text;
    else runs.push({ kind, text });
  }
  return (
    <p class="nbe-text">
      {from > 0 && <span class="nbe-quiet">… {from} tokens before </span>}
      {runs.map(({ kind, text }, i) => (
        <span key={i} class={kind} title={TITLES[kind.split(" ")[0]]}>
          {text}
        </span>
      ))}
    </p>
  );
}

const TITLES: Record<string, string> = {
  "nbe-w-cached": "found in the prefix cache",
  "nbe-w-done": "computed before",
  "nbe-w-now": "computed in this step",
  "nbe-w-open": "not computed yet",
};

function tokenKind(request: Request, i: number): string {
  const output = i >= request.numPrompt ? " nbe-w-out" : "";
  const computed = request.status === "finished" ? request.numTokens : request.computed;
  const now = request.status === "running" ? request.scheduled : 0;
  if (i >= computed) return `nbe-w-open${output}`;
  if (now && i >= computed - now) return `nbe-w-now${output}`;
  if (request.status === "running" && i < request.cached) return `nbe-w-cached${output}`;
  return `nbe-w-done${output}`;
}

export function TextLegend(): JSX.Element {
  return (
    <p class="nbe-legend nbe-text-legend" aria-hidden="true">
      <span class="nbe-w-cached">cached</span>
      <span class="nbe-w-done">computed</span>
      <span class="nbe-w-now">this step</span>
      <span class="nbe-w-open">to do</span>
      <span class="nbe-w-out">output</span>
    </p>
  );
}
