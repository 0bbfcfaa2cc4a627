// Why: every decision of the step in words with its numbers; a preemption as the story that it is.

import type { JSX } from "preact";
import type { Decision, Failed, Scheduled } from "../core/records";
import { limitsOf } from "../core/limits";
import { gotTokens, listed, sayDecision } from "../core/sentences";
import { preemptions, takenBy, tellPreemption } from "../core/story";
import { counted, grouped } from "../core/words";
import type { Moment } from "./context";
import { Facts, Marked, RequestName, SourceLink, TextLegend, TokenText, sourceName } from "./parts";

const MOST_STORIES = 3;
const MOST_ROWS = 40;
const SCREENFUL = 14;

export function WhyTab({ moment }: { moment: Moment }): JSX.Element {
  const { store, state, records } = moment;
  const { scheduled } = records;
  if (!scheduled && records.failed) return <Unplanned failed={records.failed} />;
  if (!scheduled) return <p class="nbe-none">No step has run yet: there is nothing to explain.</p>;
  const stories = preemptions(scheduled);
  const mine = store.fold.id(store.selected);
  stories.sort((a, b) => Number(b[0] === mine) - Number(a[0] === mine));
  const told = new Set(stories.slice(0, MOST_STORIES).map(([id]) => id));
  const others = (scheduled.decisions ?? []).filter(([id]) => !told.has(id));
  const request = state.request(store.selected);
  return (
    <>
      {stories.slice(0, MOST_STORIES).map((decision) => (
        <StoryView key={decision[0]} moment={moment} scheduled={scheduled} decision={decision} />
      ))}
      {!stories.length && <Summary moment={moment} scheduled={scheduled} />}
      {others.length > 0 && <p class="nbe-title">{stories.length ? "Others looked at in this step" : "Looked at in this step"}</p>}
      <Others moment={moment} scheduled={scheduled} decisions={others} />
      {request && (
        <>
          <TokenText moment={moment} request={request} />
          <TextLegend />
        </>
      )}
    </>
  );
}

function Unplanned({ failed }: { failed: Failed }): JSX.Element {
  return (
    <>
      <p class="nbe-title">Step {failed.step}: failed</p>
      <div class="nbe-story">
        <div><Marked text={`It failed in **${failed.phase}**: ${failed.error}.`} /></div>
        <div>Nothing was decided: half a plan is taken back.</div>
      </div>
    </>
  );
}

function StoryView({ moment, scheduled, decision }: { moment: Moment; scheduled: Scheduled; decision: Decision }): JSX.Element {
  const { fold } = moment.store;
  const story = tellPreemption(decision, scheduled, {
    policy: limitsOf(fold.header, moment.state).policy,
    blockSize: fold.header?.block_size ?? 16,
    place: moment.state.waiting.indexOf(fold.tables.ids.find(decision[0])),
  });
  const facts: [string, JSX.Element | string][] = [...story.facts];
  if (story.line) facts.push(["decided at", <SourceLink moment={moment} file={story.file} line={story.line} />]);
  return (
    <>
      <p class="nbe-title">{story.title}</p>
      <div class="nbe-story">
        {story.lines.map((line) => (
          <div key={line}><Marked text={line} /></div>
        ))}
      </div>
      <Facts facts={facts} />
    </>
  );
}

function Summary({ moment, scheduled }: { moment: Moment; scheduled: Scheduled }): JSX.Element {
  const { fold } = moment.store;
  const decisions = scheduled.decisions ?? [];
  const served = decisions.filter(([, verdict]) => gotTokens(verdict));
  const refused = decisions.filter((decision) => sayDecision(decision).refused);
  const total = scheduled.tokens.reduce((sum, tokens) => sum + tokens, 0);
  const budget = fold.history.value("budget", scheduled.step);
  const full = budget > 0 && total >= budget;
  const lines = [
    `**${counted(served.length || scheduled.request_ids.length, "request")}** got **${counted(total, "token")}** of a budget of ${budget}${full ? ": it is spent" : ""}.`,
  ];
  if (!scheduled.request_ids.length) lines[0] = "There was nothing to compute.";
  const first = refused[0];
  if (first) lines.push(`**${first[0]}** got none: ${sayDecision(first).text}.`);
  if (refused.length > 1) lines.push(`${counted(refused.length - 1, "more request")} got none: ${listed(refused.slice(1).map(([id]) => id))}.`);
  const { failed } = moment.records;
  if (failed) lines.push(`It failed in **${failed.phase}**: ${failed.error}.`);
  return (
    <>
      <p class="nbe-title">Step {scheduled.step}: {failed ? "failed" : refused.length ? "not everyone was served" : served.length ? "everyone was served" : "nothing to do"}</p>
      <div class="nbe-story">
        {lines.map((line) => (
          <div key={line}><Marked text={line} /></div>
        ))}
      </div>
    </>
  );
}

interface OthersProps {
  moment: Moment;
  scheduled: Scheduled;
  decisions: Decision[];
}

function Others({ moment, scheduled, decisions }: OthersProps): JSX.Element {
  const { store } = moment;
  const mine = store.fold.id(store.selected);
  const most = store.moving ? SCREENFUL : MOST_ROWS;
  const sorted = decisions.length > MOST_ROWS ? [...decisions].sort((a, b) => weight(b, mine) - weight(a, mine)) : decisions;
  const left = sorted.length - most;
  return (
    <div class="nbe-decisions">
      {sorted.slice(0, most).map((decision, i) => {
        const said = sayDecision(decision, takenBy(scheduled.block_ops ?? [], decision[0]));
        const [id, , , , line = 0, file = ""] = decision;
        return (
          <div key={left > 0 ? i : id} class={`nbe-decision${id === mine ? " nbe-sel" : ""}`}>
            <RequestName moment={moment} id={id} />
            <span class="nbe-got">{said.got}</span>
            <span class={said.refused ? "nbe-refused" : "nbe-quiet"}>{said.text}</span>
            {line > 0 && (
              <button
                type="button"
                class="nbe-line"
                title={`decided at ${sourceName(file)}:${line}`}
                aria-label={`${id}: source line ${line}`}
                onClick={() => store.openSource(file, line)}
              >
                ‹›
              </button>
            )}
          </div>
        );
      })}
      {left > 0 && <p class="nbe-none">and {grouped(left)} more, most of them {moreOf(sorted.slice(most))}</p>}
    </div>
  );
}

/** In a crowd the chosen one and the refused come first. */
function weight(decision: Decision, mine: string): number {
  return (decision[0] === mine ? 4 : 0) + (sayDecision(decision).refused ? 2 : 0) + (decision[1] === "decode" ? 0 : 1);
}

function moreOf(decisions: Decision[]): string {
  const counts = new Map<string, number>();
  for (const [, verdict] of decisions) counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  const [verdict] = [...counts].sort((a, b) => b[1] - a[1])[0];
  return verdict.replaceAll("_", " ");
}
