// "run until…": a menu of conditions at which the engine pauses.

import type { JSX } from "preact";
import type { Store } from "../host/store";
import { Form, Menu, NumberField } from "./menu";

const CHOICES = [
  { what: "preempted", label: "a request is preempted" },
  { what: "admitted", label: "a request is admitted" },
  { what: "finished", label: "a request finishes" },
  { what: "idle", label: "all is done" },
] as const;

export function RunUntil({ store }: { store: Store }): JSX.Element {
  return (
    <Menu name="until" label="run until…" title="Run until something happens">
      {(close) => {
        const run = (args: Record<string, unknown>): void => {
          close();
          store.command("run_until", args);
        };
        return (
          <>
            {CHOICES.map(({ what, label }) => (
              <button key={what} type="button" onClick={() => run({ what })}>
                {label}
              </button>
            ))}
            <Form label="run" submit={({ value }) => run({ what: "step", value: Number(value) })}>
              <NumberField name="value" label="step" value={store.fold.live.step + 10} />
            </Form>
            <Form label="run" submit={({ value }) => run({ what: "free_blocks", value: Number(value) })}>
              <NumberField name="value" label="fewer free blocks than" value={4} />
            </Form>
          </>
        );
      }}
    </Menu>
  );
}
