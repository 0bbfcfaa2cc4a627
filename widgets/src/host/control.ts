// The way up to the kernel: hellos until it has answered from a thread that a running cell does not hold, then commands.

import type { ToKernel } from "./channel";

/** The part of a widget model that is needed here; `comm_live` and its event exist on ipywidgets' own models only. */
export interface ControlModel {
  get(name: string): unknown;
  on(event: string, callback: () => void, context?: unknown): void;
  off(event: string | null, callback: (() => void) | null, context?: unknown): void;
  send(message: unknown): void;
  comm_live?: boolean;
  widget_manager?: { kernel?: Kernel | null };
}

/** JupyterLab's connection to the kernel. One that is shut down closes no comm: it is only let go. */
export interface Kernel {
  disposed: Signal;
}

interface Signal {
  connect(callback: () => void): unknown;
  disconnect(callback: () => void): unknown;
}

/** asking: no answer yet. live: commands arrive at once. between: they arrive when the kernel is between cells. */
export type Liveness = "asking" | "live" | "between" | "gone";

const HELLO_MS = 300;
const HELLOS = 10;

export class Control {
  liveness: Liveness = "asking";
  private hellos = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly kernel: Kernel | null | undefined;

  constructor(
    private readonly model: ControlModel,
    private readonly changed: () => void,
  ) {
    model.on("change:answered_off_main", this.look, this);
    model.on("change:hellos", this.look, this);
    model.on("comm_live_update", this.look, this);
    this.kernel = model.widget_manager?.kernel;
    this.kernel?.disposed?.connect(this.leave);
    this.look();
  }

  /** A view has opened: ask again, as often as it takes. */
  hello(): void {
    if (this.liveness === "live" || this.liveness === "gone") return;
    clearTimeout(this.timer);
    this.hellos = 0;
    this.ask();
  }

  send(message: ToKernel): void {
    if (this.liveness !== "gone") this.model.send(message);
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.model.off(null, null, this);
    this.kernel?.disposed?.disconnect(this.leave);
  }

  private leave = (): void => this.become("gone");

  private ask = (): void => {
    if (this.liveness === "live" || this.liveness === "gone") return;
    if (this.hellos >= HELLOS) return this.become("between");
    this.hellos++;
    this.send({ kind: "hello" });
    this.timer = setTimeout(this.ask, HELLO_MS);
  };

  private look = (): void => {
    if (this.model.comm_live === false) this.become("gone");
    else if (this.model.get("answered_off_main") === true && this.hellos > 0) this.become("live");
  };

  private become(liveness: Liveness): void {
    if (this.liveness === liveness) return;
    this.liveness = liveness;
    clearTimeout(this.timer);
    this.changed();
  }
}
