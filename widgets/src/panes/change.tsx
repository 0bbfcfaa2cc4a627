// "change…": the engine's limits, a new request, the prefix cache. What concerns one request is in its own tab.

import type { JSX } from "preact";
import { limitsOf } from "../core/limits";
import type { Moment } from "./context";
import { Form, Menu, NumberField, Select } from "./menu";

export function Change({ moment: { store, state } }: { moment: Moment }): JSX.Element {
  const limits = limitsOf(store.fold.header, state);
  return (
    <Menu name="change" label="change…" title="Change the engine, at its next phase boundary">
      {() => (
        <>
          <h4>limits</h4>
          <Form
            key={JSON.stringify(limits)}
            label="set"
            submit={({ budget, seqs, threshold, policy }) =>
              store.command("set", {
                ...(Number(budget) !== limits.budget && { max_num_batched_tokens: Number(budget) }),
                ...(Number(seqs) !== limits.maxSeqs && { max_num_seqs: Number(seqs) }),
                ...(Number(threshold) !== limits.threshold && { long_prefill_token_threshold: Number(threshold) }),
                ...(policy !== limits.policy && { policy }),
              })
            }
          >
            <NumberField name="budget" label="tokens a step" min={1} value={limits.budget} />
            <NumberField name="seqs" label="requests a step" min={1} value={limits.maxSeqs} />
            <NumberField name="threshold" label="longest prefill chunk" value={limits.threshold} />
            <Select name="policy" label="policy" value={limits.policy} options={[...new Set(["fcfs", "priority", limits.policy])]} />
          </Form>
          <h4>a new request</h4>
          <Form
            label="add"
            submit={({ prompt, most, priority }) =>
              prompt && store.command("add", { prompt, max_tokens: Number(most ?? 16), priority: Number(priority ?? 0) })
            }
          >
            <label class="nbe-wide">
              prompt
              <input name="prompt" placeholder="Tell me about Rome" />
            </label>
            <NumberField name="most" label="tokens, at most" min={1} value={40} />
            <NumberField name="priority" label="priority" min={-99} value={0} />
          </Form>
          <h4>the prefix cache</h4>
          <Form label="drop it" submit={({ preempt }) => store.command("drop_prefixes", { preempt_running: preempt === "yes" })}>
            <label>
              <input type="checkbox" name="preempt" value="yes" /> preempt who runs, so that all blocks are free
            </label>
          </Form>
        </>
      )}
    </Menu>
  );
}
