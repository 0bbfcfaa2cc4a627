import { existsSync, readFileSync, readdirSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { canonical } from "../src/core/canonical";
import { Fold } from "../src/core/fold";
import { bytesOfBase64 } from "../src/host/bytes";

interface Fixture {
  records: string[];
  views: { after: number; view: unknown }[];
}

const folders = ["fixtures/", "../../tests/fixtures/"].map((name) => new URL(name, import.meta.url)).filter((url) => existsSync(url));
const files = folders.flatMap((folder) => readdirSync(folder).filter((name) => name.endsWith(".json")).map((name) => new URL(name, folder)));
const fixtures = files
  .map((url): [string, Fixture] => [url.pathname.split("/").pop() as string, JSON.parse(readFileSync(url, "utf8")) as Fixture])
  .filter(([, fixture]) => Array.isArray(fixture.records) && Array.isArray(fixture.views));

describe.each(fixtures)("%s", (_, fixture) => {
  it("folds to the canonical views", () => {
    const fold = new Fold();
    let done = 0;
    for (const { after, view } of fixture.views) {
      for (; done <= after; done++) fold.push(bytesOfBase64(fixture.records[done]));
      expect(canonical(fold.live, fold.tables)).toEqual(view);
    }
  });
});

const story = fixtures.find(([name]) => name === "story.json")![1];

function folded(): Fold {
  const fold = new Fold();
  for (const record of story.records) fold.push(bytesOfBase64(record));
  return fold;
}

describe("seeking", () => {
  it("finds every past moment again, in any order", () => {
    const fold = new Fold();
    const seen: unknown[] = [];
    for (const record of story.records) {
      fold.push(bytesOfBase64(record));
      seen[fold.length] = canonical(fold.live, fold.tables);
    }
    const places = [...seen.keys()].filter((place) => place > 0);
    for (const place of [...places].reverse()) expect(canonical(fold.seek(place), fold.tables)).toEqual(seen[place]);
    for (const place of places) expect(canonical(fold.seek(place), fold.tables)).toEqual(seen[place]);
    const shuffled = places.map((place) => (place * 37) % places.length).filter((place) => place > 0);
    for (const place of shuffled) expect(canonical(fold.seek(place), fold.tables)).toEqual(seen[place]);
  });

  it("leaves the live state alone", () => {
    const fold = folded();
    const before = canonical(fold.live, fold.tables);
    fold.seek(fold.placeAfter(7));
    expect(canonical(fold.live, fold.tables)).toEqual(before);
  });

  it("knows where a step ends and what it did", () => {
    const fold = folded();
    const state = fold.seek(fold.placeAfter(20));
    expect(state.step).toBe(21);
    expect(state.shownStep).toBe(20);
    const { scheduled, executed, updated } = fold.step(20);
    expect([scheduled?.step, executed?.step, updated?.step]).toEqual([20, 20, 20]);
    expect(fold.step(20, 1).scheduled).toBeUndefined();
  });
});

describe("history", () => {
  it("has a row a step, with tokens under the budget", () => {
    const { history, header } = folded();
    expect(history.length).toBe(43);
    for (let step = 0; step < history.length; step++) {
      expect(history.value("prefill", step) + history.value("decode", step)).toBeLessThanOrEqual(header!.token_budget);
    }
    expect(history.value("forward", 3)).toBeGreaterThan(0);
  });

  it("draws a lane a request: waiting, prefill, decode, and its end", () => {
    const fold = folded();
    const lane = fold.history.lanes.get(fold.tables.ids.find("r1"))!;
    expect(lane.kinds[lane.kinds.length - 1]).toBe(4);
    expect(lane.kinds.slice(0, 2)).toEqual([1, 2]);
  });
});

describe("rewind", () => {
  it("forgets the steps that the engine took back", () => {
    const fold = new Fold();
    const records = story.records.map(bytesOfBase64);
    const keyframe = records.findIndex((bytes) => new TextDecoder("latin1").decode(bytes.subarray(0, 16)).includes("keyframe"));
    for (const record of records) fold.push(record);
    fold.push(records[keyframe]);
    expect(fold.live.step).toBe(20);
    expect(fold.history.end).toBe(20);
    expect(fold.seek(fold.placeAfter(12)).step).toBe(13);
    for (const record of records.slice(keyframe + 1)) fold.push(record);
    expect(canonical(fold.live, fold.tables)).toEqual(canonical(folded().live, fold.tables));
    expect(fold.history.length).toBe(43);
  });
});
