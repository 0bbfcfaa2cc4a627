// The flat tensors of a step, cut into its requests.

import type { BatchTensors } from "./records";

export interface BatchRow {
  request: string;
  start: number;
  seqLen: number;
  tokens: number[];
  positions: number[];
  slots: number[];
  sampled: number[];
  top: { token: number; probability: number }[];
}

export function readBatch(batch: BatchTensors, requests: string[], sampled: number[][]): BatchRow[] {
  const tokens = int32(batch.token_ids);
  const positions = int32(batch.positions);
  const slots = int32(batch.slot_mapping);
  const starts = int32(batch.query_start_loc);
  const lengths = int32(batch.seq_lens);
  const many = batch.num_alternatives ?? 0;
  const topIds = int32(batch.top_token_ids);
  const topShares = float32(batch.top_probs);
  return requests.map((request, row) => {
    const [from, to] = [starts[row] ?? 0, starts[row + 1] ?? 0];
    const top = Array.from({ length: many }, (_, k) => ({
      token: topIds[row * many + k] ?? -1,
      probability: topShares[row * many + k] ?? 0,
    })).filter(({ token }) => token >= 0);
    return {
      request,
      start: from,
      seqLen: lengths[row] ?? 0,
      tokens: tokens.slice(from, to),
      positions: positions.slice(from, to),
      slots: slots.slice(from, to),
      sampled: sampled[row] ?? [],
      top,
    };
  });
}

function int32(bytes: Uint8Array | undefined): number[] {
  return numbers(bytes, (view, at) => view.getInt32(at, true));
}

function float32(bytes: Uint8Array | undefined): number[] {
  return numbers(bytes, (view, at) => view.getFloat32(at, true));
}

function numbers(bytes: Uint8Array | undefined, read: (view: DataView, at: number) => number): number[] {
  if (!bytes) return [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Array.from({ length: bytes.byteLength >> 2 }, (_, i) => read(view, i * 4));
}
