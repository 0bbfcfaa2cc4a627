// One colour a request, everywhere. Colours are CSS tokens (--nbe-c0 …); this file knows their order and how to judge them.

export const NUM_COLORS = 8;

export function colorToken(request: number): string {
  return `--nbe-c${((request % NUM_COLORS) + NUM_COLORS) % NUM_COLORS}`;
}

/** For a style attribute: everything inside then uses var(--c). */
export function colorStyle(request: number): Record<string, string> {
  return { "--c": `var(${colorToken(request)})` };
}

export type Rgb = [number, number, number];

/** #rgb, #rrggbb, rgb(…), rgba(…), or color(srgb …); anything else is black. */
export function parseColor(text: string): Rgb {
  const hex = /^#([0-9a-f]{3,8})$/i.exec(text.trim())?.[1];
  if (hex) {
    const wide = hex.length < 6 ? [...hex].map((digit) => digit + digit).join("") : hex;
    return [0, 2, 4].map((at) => parseInt(wide.slice(at, at + 2), 16)) as Rgb;
  }
  const numbers = text.match(/-?[\d.]+/g)?.map(Number) ?? [];
  if (/^\s*color\(/.test(text)) return numbers.slice(0, 3).map((value) => value * 255) as Rgb;
  return numbers.length >= 3 ? (numbers.slice(0, 3) as Rgb) : [0, 0, 0];
}

/** Relative luminance, 0 … 1 (WCAG 2). */
export function luminance([r, g, b]: Rgb): number {
  const linear = [r, g, b].map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

/** Contrast ratio, 1 … 21. */
export function contrast(a: Rgb, b: Rgb): number {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

export function mix(a: Rgb, b: Rgb, share: number): Rgb {
  return a.map((value, i) => value * share + b[i] * (1 - share)) as Rgb;
}

/** The better readable of two inks on `ground`. */
export function inkOn(ground: Rgb, dark: string, light: string): string {
  return contrast(ground, parseColor(dark)) >= contrast(ground, parseColor(light)) ? dark : light;
}
