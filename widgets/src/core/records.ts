// The records of nbengine/observe/records.py, as they come off the wire: fields that hold their default are absent.

import { decode } from "./msgpack";

export interface Header {
  t: "header";
  version: number;
  engine: string;
  model: string;
  num_blocks: number;
  block_size: number;
  max_num_seqs: number;
  token_budget: number;
  max_model_len: number;
  policy: string;
  enable_prefix_caching: boolean;
  enable_chunked_prefill: boolean;
  created: string;
  config?: Record<string, unknown>;
}

export interface Texts {
  t: "texts";
  token_ids: number[];
  texts: string[];
}

/** op, block id, request id, hash: see nbengine/kv_cache/ops.py. */
export type BlockOp = [op: string, block: number, request?: string | null, hash?: string | null];

/** request id, verdict, numbers, cause, line, file: see nbengine/scheduler/decision.py. */
export type Decision = [
  request: string,
  verdict: string,
  numbers: Record<string, number>,
  cause?: string | null,
  line?: number,
  file?: string,
  rule?: string,
];

interface Moment {
  step: number;
  at: number;
}

interface BlockChange {
  block_ops?: BlockOp[];
  running?: string[] | null;
  waiting?: string[] | null;
}

export interface Added extends Moment {
  t: "added";
  request_id: string;
  prompt_token_ids: number[];
  max_tokens: number;
  priority?: number;
  prompt?: string | null;
  params?: Record<string, unknown>;
  waiting?: string[];
}

export interface Aborted extends Moment, BlockChange {
  t: "aborted";
  request_id: string;
  reason?: string;
}

export interface Changed extends Moment, BlockChange {
  t: "changed";
  what: string;
  values: Record<string, unknown>;
  request_id?: string | null;
}

export interface Scheduled extends Moment, BlockChange {
  t: "scheduled";
  schedule_s: number;
  request_ids: string[];
  tokens: number[];
  computed: number[];
  preempted?: string[];
  finished_req_ids?: string[];
  decisions?: Decision[];
  num_common_prefix_blocks?: number;
}

export interface BatchTensors {
  token_ids: Uint8Array;
  positions: Uint8Array;
  slot_mapping: Uint8Array;
  query_start_loc: Uint8Array;
  seq_lens: Uint8Array;
  num_alternatives?: number;
  top_token_ids?: Uint8Array;
  top_probs?: Uint8Array;
}

export interface Executed extends Moment {
  t: "executed";
  execute_s: number;
  prepare_s: number;
  forward_s: number;
  sample_s: number;
  sampled: number[][];
  batch?: BatchTensors | null;
  thread?: string;
}

export type FinishedEntry = [request: string, reason: string, stop?: number | string | null];

export interface Updated extends Moment {
  t: "updated";
  update_s: number;
  request_ids: string[];
  tokens: number[][];
  finished?: FinishedEntry[];
  block_ops?: BlockOp[];
  running?: string[] | null;
  prefix?: number[];
  violations?: string[] | null;
}

export interface Failed extends Moment {
  t: "failed";
  phase: string;
  error: string;
  traceback?: string;
}

export interface KeyframeRequest {
  request_id: string;
  status: string;
  token_ids: number[];
  num_prompt_tokens: number;
  num_computed_tokens: number;
  max_tokens: number;
  block_ids: number[];
  priority?: number;
  prompt?: string | null;
  params?: Record<string, unknown>;
  num_cached_tokens?: number;
  num_preemptions?: number;
  scheduled?: number;
  added_at?: number;
  first_token_at?: number | null;
  last_token_at?: number | null;
  finish_reason?: string | null;
}

export interface Keyframe extends Moment {
  t: "keyframe";
  phase: string;
  requests: KeyframeRequest[];
  running: string[];
  waiting: string[];
  finished: string[];
  owners: string[][];
  hashes: (string | null)[];
  free_queue: number[];
  counters?: Record<string, number>;
  options?: Record<string, unknown> | null;
  busy_s?: number;
}

export type AnyRecord = Header | Texts | Added | Aborted | Changed | Scheduled | Executed | Updated | Failed | Keyframe;

/** Kinds that a newer engine may add are for the caller to skip: only `t` is known about them. */
export function decodeRecord(bytes: Uint8Array): AnyRecord {
  return decode(bytes) as AnyRecord;
}

/** A buffer of records back to back, each after its length as a little-endian uint32. */
export function splitRecords(buffer: Uint8Array): Uint8Array[] {
  const view = new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  const parts: Uint8Array[] = [];
  for (let at = 0; at + 4 <= buffer.byteLength; ) {
    const length = view.getUint32(at, true);
    parts.push(buffer.subarray(at + 4, at + 4 + length));
    at += 4 + length;
  }
  return parts;
}
