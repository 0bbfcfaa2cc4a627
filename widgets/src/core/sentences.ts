// The engine's reasons in words: one decision, a waiting request's line, and a whole step.

import type { Decision, Failed, Scheduled, Updated } from "./records";
import { counted, ranges } from "./words";

export interface Said {
  /** What it got: "29 tokens", or "–". */
  got: string;
  text: string;
  /** It got nothing though it wanted something. */
  refused: boolean;
}

const GOT_TOKENS = new Set(["decode", "prefill", "admitted", "resumed"]);

export function gotTokens(verdict: string): boolean {
  return GOT_TOKENS.has(verdict);
}

/** taken: the blocks that the request took from the free queue in this step. */
export function sayDecision(decision: Decision, taken: number[] = []): Said {
  const [, verdict, numbers] = decision;
  const got = gotTokens(verdict) ? counted(numbers.tokens ?? 0, "token") : "–";
  const took = taken.length && gotTokens(verdict) ? `, took ${taken.length === 1 ? "block" : "blocks"} ${ranges(taken, 6)}` : "";
  return { got, text: reason(decision) + took, refused: !gotTokens(verdict) && verdict !== "no_need" };
}

function reason([, verdict, n, cause]: Decision): string {
  const blocks = (key: string): string => counted(n[key] ?? 0, "block");
  const kept = n.watermark ? ` and ${n.watermark} are kept back` : "";
  switch (verdict) {
    case "decode":
      return "decode";
    case "prefill":
      return n.chunked ? `prefill chunk, ${counted(n.remaining ?? 0, "prompt token")} to go` : "prefill, its last chunk";
    case "admitted":
      return `admitted${hit(n.hit)}${chunk(n)}`;
    case "resumed":
      return `resumed after its preemption${hit(n.hit)}${chunk(n)}`;
    case "no_need":
      return "nothing to compute now";
    case "budget":
      return `the token budget of ${n.budget} was spent before it`;
    case "chunk_too_big":
      return `needs ${n.needs} tokens in one piece, ${n.budget} are left of the budget (chunked prefill is off)`;
    case "no_blocks":
      return `needs ${blocks("needs")}, ${n.free} free${kept}`;
    case "reserve":
      return `its whole sequence needs ${blocks("needs")}, ${n.free} free${kept}`;
    case "max_num_seqs":
      return `${n.running} requests run already, the limit is ${n.limit}`;
    case "max_loras":
      return `${n.active} adapters are in the batch, the limit is ${n.limit}`;
    case "preempted":
      return `preempted: ${cause} needed ${blocks("needs")}, ${n.free} free; gave back ${n.freed}`;
    case "self_preempted":
      return `preempted itself: needed ${blocks("needs")}, ${n.free} free; gave back ${n.freed}`;
    case "pass_ended":
      return "behind one that preempted itself: the running pass ended there";
    case "admission_off":
      return `not looked at: a preemption${cause ? ` (${cause})` : ""} ends admission`;
    case "behind":
      return `behind ${cause}`;
    case "paused":
      return "the scheduler is paused";
    case "throttled":
      return "prefill is throttled";
    case "grammar":
      return "waits for its grammar";
    default:
      return verdict.replaceAll("_", " ");
  }
}

function hit(tokens: number | undefined): string {
  return tokens ? `, ${counted(tokens, "token")} found in the prefix cache` : "";
}

function chunk(n: Record<string, number>): string {
  return n.chunked ? `, ${counted(n.remaining ?? 0, "prompt token")} to go` : "";
}

/** One sentence for a step, as a screen reader speaks it. */
export function sayStep(step: number, scheduled: Scheduled | undefined, updated: Updated | undefined, failed?: Failed): string {
  if (!scheduled && failed) return `Step ${step}: ${failed.phase} failed.`;
  if (!scheduled) return `Step ${step}: nothing scheduled yet.`;
  const decisions = scheduled.decisions ?? [];
  const count = (verdict: string): number => decisions.filter((decision) => decision[1] === verdict).length;
  const parts: string[] = [];
  const decoded = count("decode");
  const prefilled = count("prefill");
  if (decoded) parts.push(`decoded ${decoded}`);
  if (prefilled) parts.push(`prefilled ${prefilled}`);
  const names = (verdict: string): string[] => decisions.filter((decision) => decision[1] === verdict).map(([id]) => id);
  for (const verdict of ["admitted", "resumed"]) if (count(verdict)) parts.push(`${verdict} ${listed(names(verdict))}`);
  if (!parts.length && scheduled.request_ids.length) parts.push(`ran ${counted(scheduled.request_ids.length, "request")}`);
  if (scheduled.preempted?.length) parts.push(`preempted ${listed(scheduled.preempted)}`);
  if (updated?.finished?.length) parts.push(`finished ${listed(updated.finished.map(([id]) => id))}`);
  return `Step ${step}: ${parts.join(", ") || "nothing to do"}.`;
}

export function listed(names: string[], most = 4): string {
  if (names.length <= most) return names.join(", ");
  return `${names.slice(0, most).join(", ")} and ${names.length - most} more`;
}
