// What a step was, beside the pointer.

import type { JSX } from "preact";
import { SERIES } from "../core/history";
import { sayStep } from "../core/sentences";
import { counted, duration, grouped } from "../core/words";
import { HEAD } from "../draw/timeline";
import type { Moment } from "./context";

const WIDTH = 260;

export function TimelineTip({ moment, step, x, width }: { moment: Moment; step: number; x: number; width: number }): JSX.Element {
  const { store, state } = moment;
  const { history } = store.fold;
  const { scheduled, updated, failed } = store.fold.step(step);
  const of = (name: Parameters<typeof history.value>[0]): number => history.value(name, step);
  const phases = SERIES.filter((name) => of(name) > 0).map((name) => `${name} ${duration(of(name))}`);
  const tokens = of("prefill") + of("decode");
  const aside = x + 30 + WIDTH > width ? x - WIDTH - 10 : x + 30;
  return (
    <div class="nbe-tip" role="tooltip" style={`left:${aside}px;top:${HEAD + 4}px;width:${WIDTH}px`}>
      <b>{sayStep(step, scheduled, updated, failed)}</b>
      <div>{phases.join(", ")}</div>
      <div>{counted(tokens, "token")} of {grouped(of("budget"))}: {of("prefill")} prefill, {of("decode")} decode</div>
      <div>
        {of("used")} of {counted(state.blocks.count - 1, "KV block")} in use
        {of("queries") > 0 && `, ${Math.round((100 * of("hits")) / of("queries"))}% prefix hits so far`}
      </div>
    </div>
  );
}
