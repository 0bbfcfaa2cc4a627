// A store and the kernel: data comes on the Lab's model, everything goes up on the control model.

import { Channel, type FromKernel, type ToKernel } from "./channel";
import { Control, type ControlModel } from "./control";
import type { Store } from "./store";

/** What anywidget hands over. */
export interface Model {
  get(name: string): unknown;
  on(event: string, callback: (...args: never[]) => void): void;
  off(event: string, callback: (...args: never[]) => void): void;
  send(message: unknown): void;
  widget_manager: { get_model(id: string): Promise<ControlModel> };
}

/** Connect; returns what undoes it. */
export async function connect(store: Store, model: Model): Promise<() => void> {
  store.capabilities = (model.get("capabilities") as string[] | undefined) ?? [];
  const control = await findControl(store, model);
  const send = (message: ToKernel): void => (control ? control.send(message) : model.send(message));
  let commands = 0;
  store.wire = {
    liveness: () => control?.liveness ?? "between",
    hello: () => control?.hello(),
    command: (name, args) => {
      send({ kind: "command", id: ++commands, name, args });
      return commands;
    },
  };
  const channel = new Channel(store.fold, {
    send,
    records: () => store.changed(),
    status: (status) => store.receiveStatus(status),
    source: (_id, found) => store.receiveSource(found),
  });
  const onMessage = (message: FromKernel, buffers: DataView[]): void => channel.receive(message, buffers);
  const onCapabilities = (): void => {
    store.capabilities = (model.get("capabilities") as string[] | undefined) ?? [];
    store.changed();
  };
  model.on("msg:custom", onMessage);
  model.on("change:capabilities", onCapabilities);
  send({ kind: "ready", have: channel.have });
  return () => {
    model.off("msg:custom", onMessage);
    model.off("change:capabilities", onCapabilities);
    control?.dispose();
    store.stop();
  };
}

/** A saved notebook may hold the Lab's state without its control model: then nobody is there. */
async function findControl(store: Store, model: Model): Promise<Control | null> {
  const id = model.get("control_id");
  if (typeof id !== "string" || !id) return null;
  try {
    return new Control(await model.widget_manager.get_model(id), () => store.changed());
  } catch {
    store.status = { state: "closed" };
    return null;
  }
}
