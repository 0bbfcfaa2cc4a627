// A state as plain data, the same as EngineView.canonical() in Python: what the shared fixtures compare.

import type { Tables } from "./delta";
import type { State } from "./state";

export function canonical(state: State, tables: Tables): Record<string, unknown> {
  const names = (indices: number[]): string[] => indices.map((index) => tables.ids.list[index]);
  const { blocks } = state;
  const all = Array.from({ length: blocks.count }, (_, block) => block);
  const requests = state.requests.filter((request) => request !== undefined);
  return {
    step: state.step,
    phase: state.phase,
    running: names(state.running),
    waiting: names(state.waiting),
    finished: names(state.finished),
    free_queue: blocks.freeQueue(),
    owners: all.map((block) => names(blocks.owners(block))),
    hashes: all.map((block) => (blocks.hash[block] < 0 ? null : tables.hashes.list[blocks.hash[block]])),
    requests: Object.fromEntries(
      requests.map((request) => [
        request.id,
        {
          status: request.status,
          num_tokens: request.numTokens,
          num_computed_tokens: request.computed,
          block_ids: request.blockIds.slice(),
          num_cached_tokens: request.cached,
          num_preemptions: request.preemptions,
          finish_reason: request.finishReason,
        },
      ]),
    ),
  };
}
