// Strings as small numbers, so that deltas and block columns hold no strings.

export class Names {
  private readonly indices = new Map<string, number>();
  readonly list: string[] = [];

  index(name: string): number {
    let index = this.indices.get(name);
    if (index === undefined) {
      index = this.list.length;
      this.indices.set(name, index);
      this.list.push(name);
    }
    return index;
  }

  find(name: string | null | undefined): number {
    return name == null ? -1 : (this.indices.get(name) ?? -1);
  }
}
