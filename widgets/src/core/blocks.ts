// The KV blocks as columns, and the free queue as a doubly linked list in two of them. Requests and hashes are indices.

export const NOBODY = -1;

/** One block operation as numbers: op code, block, request index, hash index. */
export const OP_WIDTH = 4;
const codes = ["a", "e", "h", "c", "u", "d", "f", "b"] as const;
export const OpCode = { allocate: 0, evict: 1, hit: 2, cache: 3, uncache: 4, deref: 5, freeFront: 6, freeBack: 7 } as const;

export function opCode(op: string): number {
  return codes.indexOf(op as (typeof codes)[number]);
}

export class Blocks {
  readonly refs: Int16Array;
  /** First owner of each block; further ones are in `others`. */
  readonly owner: Int32Array;
  readonly hash: Int32Array;
  /** Who held it last: the label of a block that is cached and free. */
  readonly lastOwner: Int32Array;
  /** Its place in its owner's block table. */
  readonly place: Int32Array;
  /** The step that last did something to it. */
  readonly touched: Int32Array;
  readonly others = new Map<number, number[]>();
  /** The hash that each hash continues, -1 for a first block's. True at all times, so that all moments share it. */
  parents = new Map<number, number>();
  private readonly next: Int32Array;
  private readonly previous: Int32Array;
  numFree = 0;

  constructor(readonly count: number) {
    const column = (fill: number): Int32Array => new Int32Array(count).fill(fill);
    this.refs = new Int16Array(count);
    this.owner = column(NOBODY);
    this.hash = column(NOBODY);
    this.lastOwner = column(NOBODY);
    this.place = column(0);
    this.touched = column(-1);
    this.next = new Int32Array(count + 1).fill(-1);
    this.previous = new Int32Array(count + 1).fill(-1);
    this.next[count] = this.previous[count] = count;
  }

  /** A pool as the engine starts it: block 0 reserved, the rest free in order. */
  static fresh(count: number): Blocks {
    const blocks = new Blocks(count);
    for (let block = 1; block < count; block++) blocks.pushBack(block);
    return blocks;
  }

  copyFrom(source: Blocks): void {
    for (const column of ["refs", "owner", "hash", "lastOwner", "place", "touched"] as const) this[column].set(source[column]);
    this.next.set(source.next);
    this.previous.set(source.previous);
    this.numFree = source.numFree;
    this.parents = source.parents;
    this.others.clear();
    for (const [block, owners] of source.others) this.others.set(block, owners);
  }

  clone(): Blocks {
    const copy = new Blocks(this.count);
    copy.copyFrom(this);
    return copy;
  }

  isFree(block: number): boolean {
    return this.next[block] !== -1;
  }

  freeQueue(limit = this.numFree): number[] {
    const queue: number[] = [];
    for (let block = this.next[this.count]; block !== this.count && queue.length < limit; block = this.next[block]) {
      queue.push(block);
    }
    return queue;
  }

  owners(block: number): number[] {
    if (this.owner[block] === NOBODY) return [];
    return [this.owner[block], ...(this.others.get(block) ?? [])];
  }

  clearFreeQueue(): void {
    this.next.fill(-1);
    this.previous.fill(-1);
    this.next[this.count] = this.previous[this.count] = this.count;
    this.numFree = 0;
  }

  pushBack(block: number): void {
    this.takeFree(block); // in a stream with gaps it may be free already
    this.link(block, this.previous[this.count], this.count);
  }

  pushFront(block: number): void {
    this.takeFree(block);
    this.link(block, this.count, this.next[this.count]);
  }

  takeFree(block: number): void {
    const { next, previous } = this;
    if (next[block] === -1) return;
    next[previous[block]] = next[block];
    previous[next[block]] = previous[block];
    next[block] = previous[block] = -1;
    this.numFree--;
  }

  addOwner(block: number, request: number): void {
    this.refs[block]++;
    if (request === NOBODY) return;
    this.lastOwner[block] = request;
    if (this.owner[block] === NOBODY) this.owner[block] = request;
    else this.others.set(block, [...(this.others.get(block) ?? []), request]);
  }

  removeOwner(block: number, request: number): void {
    const rest = this.owners(block);
    const at = rest.indexOf(request);
    if (at < 0) return;
    this.refs[block]--;
    rest.splice(at, 1);
    this.setOwners(block, rest);
  }

  setOwners(block: number, owners: number[]): void {
    this.owner[block] = owners.length ? owners[0] : NOBODY;
    if (owners.length > 1) this.others.set(block, owners.slice(1));
    else this.others.delete(block);
    if (owners.length) this.lastOwner[block] = owners[0];
  }

  private link(block: number, before: number, after: number): void {
    this.previous[block] = before;
    this.next[block] = after;
    this.next[before] = block;
    this.previous[after] = block;
    this.numFree++;
  }
}
