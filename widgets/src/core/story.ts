// Why a request lost its place: the story of one preemption, from the decision and the block operations of its step.

import type { BlockOp, Decision, Scheduled } from "./records";
import { counted, ordinal, ranges } from "./words";

export interface Story {
  title: string;
  /** Sentences; what stands between ** ** is the point of it. */
  lines: string[];
  facts: [string, string][];
  file: string;
  line: number;
  victim: string;
}

export interface StoryContext {
  policy: string;
  blockSize: number;
  /** Its place in the waiting queue at the moment shown, from 0; -1 if it is not there. */
  place: number;
}

export function preemptions(scheduled: Scheduled): Decision[] {
  return (scheduled.decisions ?? []).filter(([, verdict]) => verdict === "preempted" || verdict === "self_preempted");
}

export function tellPreemption(decision: Decision, scheduled: Scheduled, context: StoryContext): Story {
  const [victim, verdict, numbers, , line = 0, file = "", rule = ""] = decision;
  const cause = verdict === "self_preempted" ? victim : (decision[3] ?? "another request");
  const ops = (scheduled.block_ops ?? []).filter(([, , who]) => who === victim);
  const count = (op: string): number => ops.filter(([kind]) => kind === op).length;
  const kept = count("b");
  const bare = count("f");
  const shared = count("d");
  const computed = numbers.computed ?? 0;
  const lost = (scheduled.block_ops ?? []).filter(([op, block]) => op === "e" && ops.some(([kind, mine]) => kind === "b" && mine === block)).length;
  const again = Math.max(0, computed - (kept - lost + shared) * context.blockSize);
  const taken = takenBy(scheduled.block_ops ?? [], cause);
  const lines = [
    `${cause} needed **${counted(numbers.needs ?? 0, "block")}**${forWhat(scheduled, cause)}; ` +
      `**${numbers.free ?? 0} ${numbers.free === 1 ? "was" : "were"} free**.`,
    ruleLine(rule, context.policy, victim, cause),
    wentBack(numbers.freed ?? ops.length, kept, bare, shared),
  ];
  if (taken.length && cause !== victim) {
    lines.push(`**${cause} took ${taken.length === 1 ? "block" : "blocks"} ${ranges(taken, 8)}.**`);
  }
  const facts: [string, string][] = [
    ["computed before", counted(computed, "token")],
    ["to recompute", again < computed ? `${again} if nothing${lost ? " more" : ""} is evicted, at most ${computed}` : counted(computed, "token")],
  ];
  if (context.place >= 0) {
    facts.push(["now", context.place === 0 ? "first in the waiting queue" : `${ordinal(context.place + 1)} in the waiting queue`]);
  }
  return { title: `${victim} lost its place in step ${scheduled.step}`, lines, facts, file, line, victim };
}

function forWhat(scheduled: Scheduled, cause: string): string {
  const row = scheduled.request_ids.indexOf(cause);
  if (row < 0) return "";
  const first = scheduled.computed[row] + 1;
  const last = scheduled.computed[row] + scheduled.tokens[row];
  return first === last ? ` for its ${ordinal(first)} token` : ` for its tokens ${first} to ${last}`;
}

/** rule: the name of a person's own, empty for the stock scheduler's. */
function ruleLine(rule: string, policy: string, victim: string, cause: string): string {
  if (rule) return `${rule} chose **${victim}${victim === cause ? " itself" : ""}**.`;
  const whom = policy === "priority" ? "the least urgent of the running queue" : "the last of the running queue";
  if (victim === cause) return `Policy ${policy} takes ${whom}, and that was **${victim} itself**.`;
  return `Policy ${policy} takes ${whom}: **${victim}**.`;
}

function wentBack(freed: number, kept: number, bare: number, shared: number): string {
  const parts: string[] = [];
  if (kept) parts.push(`${kept} ${kept === 1 ? "keeps its hash" : "keep their hash"} and can be hit again`);
  if (bare) parts.push(`${bare} ${bare === 1 ? "was bare and is" : "were bare and are"} next to be taken`);
  const stay = shared ? ` ${shared} more ${shared === 1 ? "stays" : "stay"} with others that share ${shared === 1 ? "it" : "them"}.` : "";
  return `Its ${counted(freed, "block")} went back${parts.length ? `: ${parts.join(", ")}` : ""}.${stay}`;
}

/** Blocks that a request took from the free queue in a step, in order. */
export function takenBy(ops: BlockOp[], request: string): number[] {
  return ops.filter(([op, , who]) => op === "a" && who === request).map(([, block]) => block);
}
