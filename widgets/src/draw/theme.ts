// The tokens of lab.css as a canvas needs them: read once per theme, from the element itself.

import { NUM_COLORS, type Rgb, inkOn, luminance, mix, parseColor } from "../core/colors";

export interface Theme {
  dark: boolean;
  bg: string;
  bg1: string;
  bg2: string;
  ink: string;
  ink2: string;
  ink3: string;
  line: string;
  accent: string;
  warn: string;
  bad: string;
  ok: string;
  phases: Record<"schedule" | "prepare" | "forward" | "sample" | "update", string>;
  colors: string[];
  /** Colours of owned blocks: a request's colour, a little toned down towards the ground, and the ink on it. */
  fills: string[];
  inks: string[];
  /** Cached and free: a breath of the colour. */
  tints: string[];
  ui: string;
  mono: string;
}

const FILL_DARK = 0.84;
const TINT = 0.16;

export function readTheme(element: Element): Theme {
  const style = getComputedStyle(element);
  const token = (name: string): string => style.getPropertyValue(`--nbe-${name}`).trim();
  const ground = resolved(element, token("bg"));
  const colors = Array.from({ length: NUM_COLORS }, (_, i) => token(`c${i}`));
  const dark = luminance(ground) < 0.4;
  const solid = colors.map((color) => mix(parseColor(color), ground, dark ? FILL_DARK : 1));
  return {
    dark,
    bg: css(ground),
    bg1: token("bg1"),
    bg2: token("bg2"),
    ink: token("ink"),
    ink2: token("ink2"),
    ink3: token("ink3"),
    line: token("line"),
    accent: token("accent"),
    warn: token("warn"),
    bad: token("bad"),
    ok: token("ok"),
    phases: {
      schedule: token("schedule"),
      prepare: token("prepare"),
      forward: token("forward"),
      sample: token("sample"),
      update: token("update"),
    },
    colors,
    fills: solid.map(css),
    inks: solid.map((fill) => inkOn(fill, token("on-light"), token("on-dark"))),
    tints: colors.map((color) => css(mix(parseColor(color), ground, TINT))),
    ui: token("font") || "sans-serif",
    mono: token("mono") || "monospace",
  };
}

function css(color: Rgb): string {
  return `rgb(${color.map(Math.round).join(",")})`;
}

/** A theme may name its colours by words or var(); the browser turns them into numbers. */
function resolved(element: Element, color: string): Rgb {
  if (/^#/.test(color)) return parseColor(color);
  const probe = document.createElement("span");
  probe.style.color = color;
  element.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return parseColor(value);
}

/** Light or dark by what lies behind the widget; hosts without a background of their own go by the system's wish. */
export function isDark(element: Element): boolean {
  const flag = document.body.dataset.jpThemeLight;
  if (flag) return flag === "false";
  for (let at: Element | null = element.parentElement; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (color && !/^transparent$|,\s*0\)$/.test(color)) return luminance(parseColor(color)) < 0.4;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Call `changed` when the host's theme may have changed; returns what ends that. */
export function watchTheme(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  const options = { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light", "data-jp-theme-name", "data-theme"] };
  observer.observe(document.body, options);
  observer.observe(document.documentElement, options);
  const queries = ["(prefers-color-scheme: dark)", "(forced-colors: active)"].map((query) => matchMedia(query));
  queries.forEach((query) => query.addEventListener("change", changed));
  return () => {
    observer.disconnect();
    queries.forEach((query) => query.removeEventListener("change", changed));
  };
}
