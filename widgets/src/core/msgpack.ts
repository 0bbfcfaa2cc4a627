// A msgpack reader for what msgspec writes: maps with string keys, arrays, numbers, strings, bytes, nil, booleans.

const text = new TextDecoder();

class Reader {
  private at = 0;
  private readonly view: DataView;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  value(): unknown {
    const tag = this.bytes[this.at++];
    if (tag < 0x80) return tag;
    if (tag < 0x90) return this.map(tag & 0x0f);
    if (tag < 0xa0) return this.array(tag & 0x0f);
    if (tag < 0xc0) return this.string(tag & 0x1f);
    if (tag >= 0xe0) return tag - 0x100;
    switch (tag) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return this.binary(this.unsigned(1));
      case 0xc5: return this.binary(this.unsigned(2));
      case 0xc6: return this.binary(this.unsigned(4));
      case 0xca: return this.take(4, this.view.getFloat32(this.at));
      case 0xcb: return this.take(8, this.view.getFloat64(this.at));
      case 0xcc: return this.unsigned(1);
      case 0xcd: return this.unsigned(2);
      case 0xce: return this.unsigned(4);
      case 0xcf: return this.take(8, Number(this.view.getBigUint64(this.at)));
      case 0xd0: return this.take(1, this.view.getInt8(this.at));
      case 0xd1: return this.take(2, this.view.getInt16(this.at));
      case 0xd2: return this.take(4, this.view.getInt32(this.at));
      case 0xd3: return this.take(8, Number(this.view.getBigInt64(this.at)));
      case 0xd9: return this.string(this.unsigned(1));
      case 0xda: return this.string(this.unsigned(2));
      case 0xdb: return this.string(this.unsigned(4));
      case 0xdc: return this.array(this.unsigned(2));
      case 0xdd: return this.array(this.unsigned(4));
      case 0xde: return this.map(this.unsigned(2));
      case 0xdf: return this.map(this.unsigned(4));
      default: throw new Error(`msgpack: unknown tag 0x${tag.toString(16)} at byte ${this.at - 1}`);
    }
  }

  private take<T>(size: number, value: T): T {
    this.at += size;
    return value;
  }

  private unsigned(size: 1 | 2 | 4): number {
    const at = this.at;
    this.at += size;
    return size === 1 ? this.bytes[at] : size === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
  }

  private binary(length: number): Uint8Array {
    return this.take(length, this.bytes.subarray(this.at, this.at + length));
  }

  /** Short plain-ASCII strings (keys and ids: nearly all) are built here; a TextDecoder call costs ten times as much. */
  private string(length: number): string {
    const end = this.at + length;
    if (length > 24) return this.take(length, text.decode(this.bytes.subarray(this.at, end)));
    let built = "";
    for (let i = this.at; i < end; i++) {
      const byte = this.bytes[i];
      if (byte > 0x7f) return this.take(length, text.decode(this.bytes.subarray(this.at, end)));
      built += String.fromCharCode(byte);
    }
    return this.take(length, built);
  }

  private array(length: number): unknown[] {
    const items = new Array<unknown>(length);
    for (let i = 0; i < length; i++) items[i] = this.value();
    return items;
  }

  private map(length: number): Record<string, unknown> {
    const items: Record<string, unknown> = {};
    for (let i = 0; i < length; i++) {
      const key = String(this.value());
      items[key] = this.value();
    }
    return items;
  }
}

export function decode(bytes: Uint8Array): unknown {
  return new Reader(bytes).value();
}
