// What every pane gets: the store, the moment shown, the theme.

import type { Decision, Scheduled } from "../core/records";
import type { StepRecords } from "../core/fold";
import type { State } from "../core/state";
import type { Theme } from "../draw/theme";
import type { Store } from "../host/store";

export interface Moment {
  store: Store;
  state: State;
  theme: Theme;
  /** The step under way at this moment, or the last one done, as far as it has come. */
  records: StepRecords;
  decisions: Map<string, Decision>;
}

export function momentOf(store: Store, theme: Theme): Moment {
  const { state } = store;
  const records = edited(store.fold.step(state.shownStep, store.end), state, store);
  return { store, state, theme, records, decisions: decisionsOf(records.scheduled) };
}

/** What was sampled, with the tokens that were replaced by hand in their place. */
function edited(records: StepRecords, state: State, { fold }: Store): StepRecords {
  const { scheduled, executed } = records;
  if (!state.edited.size || !scheduled || !executed) return records;
  const sampled = executed.sampled.map((tokens, row) => {
    const token = state.edited.get(fold.tables.ids.find(scheduled.request_ids[row]));
    return token === undefined ? tokens : [token];
  });
  return { ...records, executed: { ...executed, sampled } };
}

const known = new WeakMap<Scheduled, Map<string, Decision>>();

function decisionsOf(scheduled: Scheduled | undefined): Map<string, Decision> {
  if (!scheduled) return new Map();
  let decisions = known.get(scheduled);
  if (!decisions) {
    decisions = new Map((scheduled.decisions ?? []).map((decision) => [decision[0], decision]));
    known.set(scheduled, decisions);
  }
  return decisions;
}
