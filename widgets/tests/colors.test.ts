import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { type Rgb, NUM_COLORS, colorToken, contrast, inkOn, mix, parseColor } from "../src/core/colors";

const tokens = readFileSync(new URL("../src/tokens.css", import.meta.url), "utf8");
const [, light, dark] = tokens.split(/^\.nbe-lab/m);

/** The value of a token; of one that asks the host's theme first, the fallback. */
function token(block: string, name: string): Rgb {
  const value = new RegExp(`--nbe-${name}:\\s*([^;]+);`).exec(block)?.[1] ?? "";
  return parseColor(/#[0-9a-f]+/i.exec(value)?.[0] ?? "");
}

const themes: [string, string, Rgb][] = [
  ["light", light, [255, 255, 255]],
  ["dark", dark, token(dark, "bg")],
];

/** What someone with one kind of cone missing sees (Viénot, Brettel, Mollon 1999; Machado 2009 for tritanopia). */
const missing: Record<string, number[][]> = {
  protanopia: [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
  deuteranopia: [[0.367, 0.861, -0.228], [0.28, 0.673, 0.047], [-0.012, 0.043, 0.969]],
};

const linear = (value: number): number => (value <= 10.31 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);

function lab(color: Rgb, matrix?: number[][]): number[] {
  let rgb: number[] = color.map(linear);
  if (matrix) rgb = matrix.map((row) => Math.min(1, Math.max(0, row.reduce((sum, weight, i) => sum + weight * rgb[i], 0))));
  const [r, g, b] = rgb;
  const l = Math.cbrt(0.4122 * r + 0.5363 * g + 0.0514 * b);
  const m = Math.cbrt(0.2119 * r + 0.6807 * g + 0.1074 * b);
  const s = Math.cbrt(0.0883 * r + 0.2817 * g + 0.63 * b);
  return [0.2105 * l + 0.7936 * m - 0.0041 * s, 1.978 * l - 2.4286 * m + 0.4506 * s, 0.0259 * l + 0.7828 * m - 0.8087 * s];
}

const distance = (a: number[], b: number[]): number => Math.hypot(...a.map((value, i) => value - b[i]));

describe.each(themes)("%s", (_, block, ground) => {
  const palette = Array.from({ length: NUM_COLORS }, (_unused, i) => token(block, `c${i}`));

  it("shows every request's colour against the ground (3:1)", () => {
    for (const color of palette) expect(contrast(color, ground)).toBeGreaterThanOrEqual(3);
  });

  it("lets labels on owned blocks be read (4.5:1)", () => {
    for (const color of palette) {
      const fill = mix(color, ground, ground[0] > 128 ? 1 : 0.84);
      const ink = inkOn(fill, "#101216", "#fff");
      expect(contrast(fill, parseColor(ink))).toBeGreaterThanOrEqual(4.5);
    }
  });

  it.each(["ink", "ink2", "ink3", "warn", "bad", "ok", "accent"])("%s is readable as text (4.5:1)", (name) => {
    expect(contrast(token(block, name), ground)).toBeGreaterThanOrEqual(4.5);
  });

  it("keeps colours apart for those who see fewer", () => {
    for (const matrix of Object.values(missing)) {
      const seen = palette.map((color) => lab(color, matrix));
      seen.forEach((a, i) => seen.slice(i + 1).forEach((b) => expect(distance(a, b)).toBeGreaterThan(0.05)));
    }
  });
});

it("gives a request its colour by its order of arrival, for ever", () => {
  expect([0, 1, 8, 9].map(colorToken)).toEqual(["--nbe-c0", "--nbe-c1", "--nbe-c0", "--nbe-c1"]);
  expect(colorToken(-1)).toBe("--nbe-c7");
});

it("reads the colours that browsers write", () => {
  expect(parseColor("#fff")).toEqual([255, 255, 255]);
  expect(parseColor("rgb(1, 2, 3)")).toEqual([1, 2, 3]);
  expect(parseColor("color(srgb 1 0 0.5)")).toEqual([255, 0, 127.5]);
});
