// The queues: waiting next first with the reason, running in admission order, finished with how it ended.

import type { JSX } from "preact";
import { colorStyle } from "../core/colors";
import { gotTokens, sayDecision } from "../core/sentences";
import type { Request } from "../core/state";
import type { Moment } from "./context";
import { grouped } from "../core/words";

/** In longer lists rows are reused whoever stands in them: moving DOM nodes about is slow. */
const CROWD = 16;
const SCREENFUL = 14;
const SHOWN = { waiting: 24, running: 40, finished: 12 };

export function Queues({ moment }: { moment: Moment }): JSX.Element {
  const { state } = moment;
  const count = `${state.waiting.length} waiting, ${state.running.length} running, ${state.finished.length} finished`;
  return (
    <section class="nbe-pane nbe-queues" aria-label={`Queues: ${count}`}>
      <h3>
        Queues <small>{count}</small>
      </h3>
      <div class="nbe-scroll">
        <Section moment={moment} title="waiting, next first" list={state.waiting} most={SHOWN.waiting} none="nobody waits" />
        <Section moment={moment} title="running, in admission order" list={state.running} most={SHOWN.running} none="nobody runs" />
        <Section moment={moment} title="finished" list={state.finished} most={SHOWN.finished} latest none="nobody yet" />
      </div>
    </section>
  );
}

interface SectionProps {
  moment: Moment;
  title: string;
  list: number[];
  most: number;
  none: string;
  latest?: boolean;
}

function Section({ moment, title, list, most, none, latest }: SectionProps): JSX.Element {
  most = moment.store.moving ? Math.min(most, SCREENFUL) : most;
  const shown = latest ? list.slice(-most) : list.slice(0, most);
  const { selected } = moment.store;
  if (selected >= 0 && list.includes(selected) && !shown.includes(selected)) shown.push(selected);
  const left = list.length - shown.length;
  return (
    <>
      <h4>{title}</h4>
      {!list.length && <p class="nbe-none">{none}</p>}
      <ul class="nbe-list">
        {latest && left > 0 && <li class="nbe-none">{grouped(left)} before these</li>}
        {shown.map((index, i) => (
          <Row key={list.length > CROWD ? i : index} moment={moment} index={index} />
        ))}
        {!latest && left > 0 && <li class="nbe-none">and {grouped(left)} more</li>}
      </ul>
    </>
  );
}

function Row({ moment, index }: { moment: Moment; index: number }): JSX.Element | null {
  const { store, state } = moment;
  const request = state.request(index);
  if (!request) return null;
  const why = reasonLine(moment, request);
  const amount = request.finishReason ?? `${request.computed}/${Math.min(request.numPrompt + request.maxTokens, 99999)}`;
  const classes = ["nbe-row", store.selected === index ? "nbe-sel" : "", store.hovered === index ? "nbe-lit" : ""];
  return (
    <li>
      <button
        type="button"
        class={classes.join(" ")}
        style={colorStyle(index)}
        data-request={request.id}
        aria-pressed={store.selected === index}
        onClick={() => store.select(index)}
        onPointerEnter={() => store.set("hovered", index)}
        onPointerLeave={() => store.set("hovered", -1)}
        onFocus={() => store.set("hovered", index)}
        onBlur={() => store.set("hovered", -1)}
      >
        <span class="nbe-id nbe-mono" title={request.id}>
          <i class="nbe-dot" />
          <span>{request.id}</span>
          {request.status === "preempted" && <b class="nbe-mark" title="preempted">▼</b>}
        </span>
        <Track request={request} />
        <span class="nbe-mono nbe-amount">{amount}</span>
        {why && <span class="nbe-why">{why}</span>}
      </button>
    </li>
  );
}

/** Cached, computed, this step's tokens; the tick is where the prompt ends. One element: its background is the drawing. */
function Track({ request }: { request: Request }): JSX.Element {
  const whole = Math.max(1, request.numPrompt + request.maxTokens, request.numTokens);
  const share = (tokens: number): string => `${((100 * Math.max(0, tokens)) / whole).toFixed(2)}%`;
  const computed = request.status === "finished" ? request.numTokens : request.computed;
  const running = request.status === "running";
  const before = computed - (running ? request.scheduled : 0);
  const style = {
    "--hit": share(running ? Math.min(request.cached, before) : 0),
    "--before": share(before),
    "--now": running && request.scheduled ? `max(${share(computed)}, ${share(before)} + 3px)` : share(before),
    "--known": share(request.numTokens),
    "--prompt": share(request.numPrompt),
  };
  const said = `${request.status}, ${request.computed} of ${request.numTokens} tokens computed`;
  return <span class="nbe-track" role="img" aria-label={said} style={style} />;
}

function reasonLine({ decisions }: Moment, request: Request): string {
  const decision = decisions.get(request.id);
  if (request.status === "finished") return "";
  if (!decision) return request.status === "preempted" ? "was running, gave its blocks back" : "";
  if (request.status === "running") {
    if (decision[1] === "decode") return "";
    const said = sayDecision(decision);
    return gotTokens(decision[1]) ? `${said.text}, ${said.got} this step` : said.text;
  }
  if (decision[1] === "preempted") return `was running; ${decision[3]} needed its blocks`;
  return sayDecision(decision).text;
}
