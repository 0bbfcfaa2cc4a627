// Numbers and ids as a person reads them.

/** 10,000 (toLocaleString costs a hundred times as much). */
export function grouped(value: number): string {
  return value < 1000 ? String(value) : String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

export function counted(count: number, noun: string): string {
  return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function ordinal(value: number): string {
  const tens = value % 100;
  const suffix = tens >= 11 && tens <= 13 ? "th" : (["th", "st", "nd", "rd"][value % 10] ?? "th");
  return `${value}${suffix}`;
}

/** A token's text with its white space to be seen. */
export function visible(text: string): string {
  return text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

/** A probability; what is not quite nothing or all is not called so. */
export function percent(share: number): string {
  const rounded = Math.round(share * 100);
  if (rounded === 0 && share > 0) return "<1%";
  return rounded === 100 && share < 1 ? ">99%" : `${rounded}%`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds == null) return "–";
  if (seconds >= 0.9995) return `${seconds.toFixed(2)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toFixed(seconds >= 0.1 ? 0 : 1)} ms`;
  return `${Math.round(seconds * 1e6)} µs`;
}

/** At most `length` characters, the end kept: ids differ there. */
export function shortId(id: string, length = 6): string {
  return id.length <= length ? id : `…${id.slice(1 - length)}`;
}

/** Block ids with runs folded: 3–6 9. */
export function ranges(ids: number[], most = 40): string {
  const parts: [number, number][] = [];
  for (const id of ids) {
    const last = parts[parts.length - 1];
    if (last && id === last[1] + 1) last[1] = id;
    else parts.push([id, id]);
  }
  const text = parts.slice(0, most).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`));
  return text.join(" ") + (parts.length > most ? ` … ${parts.length - most} more` : "");
}
