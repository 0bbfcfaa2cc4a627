// A keyframe record as a State. What keyframes do not tell (who held a free block last) is kept from the state before.

import { Blocks } from "./blocks";
import type { Tables } from "./delta";
import type { Keyframe, KeyframeRequest } from "./records";
import { type Phase, type Request, State, type Status } from "./state";

export function stateOfKeyframe(frame: Keyframe, tables: Tables, before: State | null): State {
  const count = frame.owners.length;
  const blocks = before && before.blocks.count === count ? before.blocks.clone() : new Blocks(count);
  const { ids, hashes } = tables;
  blocks.clearFreeQueue();
  frame.free_queue.forEach((block) => blocks.pushBack(block));
  frame.owners.forEach((owners, block) => {
    blocks.setOwners(block, owners.map((id) => ids.index(id)));
    blocks.refs[block] = owners.length;
    const hash = frame.hashes[block];
    blocks.hash[block] = hash == null ? -1 : hashes.index(hash);
  });
  const state = new State(blocks);
  const here = before !== null && before.step === frame.step && before.phase === frame.phase;
  for (const told of frame.requests) {
    const request = requestOf(told, ids.index(told.request_id), before);
    state.requests[request.index] = request;
    request.blockIds.forEach((block, place, table) => {
      blocks.place[block] = place;
      if (blocks.hash[block] >= 0) blocks.parents.set(blocks.hash[block], place ? blocks.hash[table[place - 1]] : -1);
    });
  }
  state.step = frame.step;
  state.phase = frame.phase as Phase;
  state.at = frame.at;
  state.busy = frame.busy_s ?? 0;
  state.running = frame.running.map((id) => ids.index(id));
  state.waiting = frame.waiting.map((id) => ids.index(id));
  state.finished = frame.finished.map((id) => ids.index(id));
  state.batch = frame.requests.filter((told) => told.scheduled).map((told) => ids.index(told.request_id));
  state.error = here ? before.error : null;
  state.options = frame.options ?? before?.options ?? {};
  return state;
}

/** Token lists are shared with the state before if they say the same, so that a long run holds each token once. */
function requestOf(told: KeyframeRequest, index: number, before: State | null): Request {
  const known = before?.request(index);
  const same = known !== undefined && told.token_ids.every((token, i) => known.tokens[i] === token);
  return {
    index,
    id: told.request_id,
    status: told.status as Status,
    tokens: same ? known.tokens : told.token_ids.slice(),
    numTokens: told.token_ids.length,
    numPrompt: told.num_prompt_tokens,
    computed: told.num_computed_tokens,
    maxTokens: told.max_tokens,
    blockIds: told.block_ids.slice(),
    priority: told.priority ?? 0,
    prompt: told.prompt ?? null,
    params: told.params ?? {},
    cached: told.num_cached_tokens ?? 0,
    preemptions: told.num_preemptions ?? 0,
    scheduled: told.scheduled ?? 0,
    addedAt: told.added_at ?? 0,
    firstAt: told.first_token_at ?? null,
    lastAt: told.last_token_at ?? null,
    finishReason: told.finish_reason ?? null,
    epoch: -1,
  };
}
