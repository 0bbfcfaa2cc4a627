// R101: colours are tokens. A colour may be written down in tokens.css only, and there only as the value of a token.
import { readFileSync, readdirSync } from "node:fs";
import { expect, it } from "vitest";

const folder = new URL("../src/", import.meta.url);
const sheets = readdirSync(folder).filter((name) => name.endsWith(".css"));
const read = (name: string): string => readFileSync(new URL(name, folder), "utf8").replace(/\/\*[\s\S]*?\*\//g, "");
const COLOR = /#[0-9a-f]{3,8}\b|\brgba?\(|\bhsla?\(|:\s*(white|black|red|gray|grey)\b/i;

it.each(sheets)("%s writes no colour outside a token", (name) => {
  for (const line of read(name).split("\n")) {
    if (COLOR.test(line)) expect(line.trim()).toMatch(/^--nbe-[\w-]+:/);
  }
});

it("every token that is used is defined, and asks the host first where the host has one", () => {
  const tokens = read("tokens.css");
  const used = new Set(sheets.flatMap((name) => [...read(name).matchAll(/var\((--nbe-[\w-]+)/g)].map((match) => match[1])));
  used.delete("--nbe-height");
  for (const name of used) expect(tokens).toContain(`${name}:`);
  for (const match of tokens.matchAll(/var\((--jp-[\w-]+)([,)])/g)) expect(match[2]).toBe(",");
});

it("all rules stay under the Lab's own classes", () => {
  for (const name of sheets) {
    const selectors = read(name).replace(/@(keyframes)[^{]*\{(?:[^{}]*\{[^}]*\})*[^}]*\}/g, "").matchAll(/(?:^|[};])\s*([^{}@;]+)\{/g);
    for (const [, selector] of selectors) expect(selector).toMatch(/\.nbe-/);
  }
});
