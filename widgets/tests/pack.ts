// Records for tests: enough of msgpack to write one.

export function pack(value: unknown): Uint8Array {
  return Uint8Array.from(bytesOf(value));
}

function bytesOf(value: unknown): number[] {
  if (value === null) return [0xc0];
  if (typeof value === "boolean") return [value ? 0xc3 : 0xc2];
  if (typeof value === "number") return Number.isInteger(value) ? [0xd2, ...be(4, (view) => view.setInt32(0, value))] : [0xcb, ...be(8, (view) => view.setFloat64(0, value))];
  if (typeof value === "string") {
    const text = [...new TextEncoder().encode(value)];
    return [0xd9, text.length, ...text];
  }
  if (Array.isArray(value)) return [0xdc, value.length >> 8, value.length & 255, ...value.flatMap(bytesOf)];
  const entries = Object.entries(value as object);
  return [0xde, 0, entries.length, ...entries.flatMap(([name, held]) => [...bytesOf(name), ...bytesOf(held)])];
}

function be(size: number, write: (view: DataView) => void): Uint8Array {
  const view = new DataView(new ArrayBuffer(size));
  write(view);
  return new Uint8Array(view.buffer);
}
