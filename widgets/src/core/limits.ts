// The scheduler's limits at a moment: as the run began, and as they were changed since.

import type { Header } from "./records";
import type { State } from "./state";

export interface Limits {
  budget: number;
  maxSeqs: number;
  threshold: number;
  policy: string;
}

export function limitsOf(header: Header | null, { options }: State): Limits {
  const began = (header?.config?.scheduler ?? {}) as Record<string, unknown>;
  const number = (name: string, otherwise = 0): number => Number(options[name] ?? otherwise);
  return {
    budget: number("token_budget", header?.token_budget),
    maxSeqs: number("max_num_seqs", header?.max_num_seqs),
    threshold: number("long_prefill_token_threshold", Number(began.long_prefill_token_threshold ?? 0)),
    policy: String(options.policy ?? header?.policy ?? "fcfs"),
  };
}
