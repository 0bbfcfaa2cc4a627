// A record as numbers: what it changes, ready to be applied again and again while someone scrubs.

import { OP_WIDTH, opCode } from "./blocks";
import type { Names } from "./names";
import type { AnyRecord, BlockOp, Added, Changed, Scheduled, Updated } from "./records";
import type { Request, State } from "./state";

interface Common {
  step: number;
  at: number;
  /** How long the phase took. */
  seconds?: number;
  /** Rows of OP_WIDTH numbers. */
  ops?: Int32Array;
  running?: number[];
  waiting?: number[];
}

/** token: that replaced a sampled one. */
interface Change {
  kind: "changed";
  request: number;
  preempted: number[];
  priority: number | null;
  token: number | null;
  options: Record<string, unknown> | null;
}

export type Delta =
  | { kind: "nothing"; step: number; at: number }
  | (Common & { kind: "added"; request: Request; toEnd: boolean })
  | (Common & { kind: "aborted"; request: number; reason: string })
  | (Common & Change)
  /** rows: request, tokens, computed before. hits: request, tokens found in the prefix cache. */
  | (Common & { kind: "scheduled"; rows: Int32Array; preempted: number[]; hits: number[] })
  | (Common & { kind: "executed" })
  | (Common & { kind: "updated"; requests: number[]; tokens: number[][]; finished: [number, string][] })
  | (Common & { kind: "failed"; phase: string; error: string })
  /** The state is replaced whole: a keyframe. */
  | (Common & { kind: "jump"; target: State });

export interface Tables {
  /** Request ids. */
  ids: Names;
  hashes: Names;
}

/** Null for records that change no state (texts), that replace it (header, keyframe), or that are of an unknown kind. */
export function compile(record: AnyRecord, tables: Tables): Delta | null {
  const { ids } = tables;
  switch (record.t) {
    case "added":
      return compileAdded(record, ids);
    case "aborted":
      return {
        kind: "aborted",
        ...common(record, tables),
        request: ids.index(record.request_id),
        reason: record.reason ?? "abort",
      };
    case "changed":
      return compileChanged(record, tables);
    case "scheduled":
      return compileScheduled(record, tables);
    case "executed":
      return { kind: "executed", step: record.step, at: record.at, seconds: record.execute_s };
    case "updated":
      return compileUpdated(record, tables);
    case "failed":
      return { kind: "failed", step: record.step, at: record.at, phase: record.phase, error: record.error };
    default:
      return null;
  }
}

function compileAdded(record: Added, ids: Names): Delta {
  const waiting = record.waiting?.length ? record.waiting.map((id) => ids.index(id)) : undefined;
  const request: Request = {
    index: ids.index(record.request_id),
    id: record.request_id,
    status: "waiting",
    tokens: record.prompt_token_ids.slice(),
    numTokens: record.prompt_token_ids.length,
    numPrompt: record.prompt_token_ids.length,
    computed: 0,
    maxTokens: record.max_tokens,
    blockIds: [],
    priority: record.priority ?? 0,
    prompt: record.prompt ?? null,
    params: record.params ?? {},
    cached: 0,
    preemptions: 0,
    scheduled: 0,
    addedAt: 0,
    firstAt: null,
    lastAt: null,
    finishReason: null,
    epoch: -1,
  };
  return { kind: "added", step: record.step, at: record.at, request, toEnd: !waiting, waiting };
}

function compileChanged(record: Changed, tables: Tables): Delta {
  const { preempted, priority, token_id: token } = record.values;
  const number = (what: string, value: unknown): number | null => (record.what === what && typeof value === "number" ? value : null);
  return {
    kind: "changed",
    ...common(record, tables),
    request: tables.ids.find(record.request_id),
    preempted: Array.isArray(preempted) ? preempted.map((id) => tables.ids.index(String(id))) : [],
    priority: number("priority", priority),
    token: number("edit_token", token),
    options: record.what === "option" ? record.values : null,
  };
}

function compileScheduled(record: Scheduled, tables: Tables): Delta {
  const { ids } = tables;
  const rows = new Int32Array(record.request_ids.length * 3);
  record.request_ids.forEach((id, i) => rows.set([ids.index(id), record.tokens[i], record.computed[i]], i * 3));
  const hits: number[] = [];
  for (const [id, verdict, numbers] of record.decisions ?? []) {
    if (verdict === "admitted" || verdict === "resumed") hits.push(ids.index(id), numbers.hit ?? 0);
  }
  const preempted = (record.preempted ?? []).map((id) => ids.index(id));
  return { kind: "scheduled", ...common(record, tables), seconds: record.schedule_s, rows, preempted, hits };
}

function compileUpdated(record: Updated, tables: Tables): Delta {
  const finished = (record.finished ?? []).map(([id, reason]): [number, string] => [tables.ids.index(id), reason]);
  return {
    kind: "updated",
    ...common(record, tables),
    seconds: record.update_s,
    requests: record.request_ids.map((id) => tables.ids.index(id)),
    tokens: record.tokens,
    finished,
  };
}

function common(
  record: { step: number; at: number; block_ops?: BlockOp[]; running?: string[] | null; waiting?: string[] | null },
  tables: Tables,
): Common {
  const indices = (list: string[] | null | undefined): number[] | undefined => list?.map((id) => tables.ids.index(id));
  return {
    step: record.step,
    at: record.at,
    ops: packOps(record.block_ops, tables),
    running: indices(record.running),
    waiting: indices(record.waiting),
  };
}

function packOps(ops: BlockOp[] | undefined, tables: Tables): Int32Array | undefined {
  if (!ops?.length) return undefined;
  const packed = new Int32Array(ops.length * OP_WIDTH);
  ops.forEach(([op, block, request, hash], i) => {
    const who = tables.ids.index(request ?? "");
    packed.set([opCode(op), block, who, hash == null ? -1 : tables.hashes.index(hash)], i * OP_WIDTH);
  });
  return packed;
}
