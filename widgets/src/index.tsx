// The entry: an anywidget module (default export), and `mountRecording` for a page without a kernel.

import { splitRecords } from "./core/records";
import { bytesOfBase64 } from "./host/bytes";
import { type Model, connect } from "./host/connect";
import { Store } from "./host/store";
import { type Pane, mount } from "./lab";

interface Initialize {
  model: Model;
  signal?: AbortSignal;
}

interface Render extends Initialize {
  el: HTMLElement;
}

/** anywidget calls this once a model: nothing is shared between two Labs, and all views of one share its store. */
export default function widget() {
  const store = new Store();
  return {
    async initialize({ model, signal }: Initialize) {
      const disconnect = await connect(store, model);
      signal?.addEventListener("abort", disconnect);
      return {
        mount(element: HTMLElement, pane: Pane, until?: AbortSignal): () => void {
          const unmount = mount(element, store, pane);
          until?.addEventListener("abort", unmount);
          return unmount;
        },
      };
    },
    render({ model, el }: Render) {
      return mount(el, store, (model.get("pane") as Pane) ?? "lab");
    },
  };
}

/** Show a recording: base64 of records, each after its length as a little-endian uint32. */
export function mountRecording(element: HTMLElement, base64: string, pane: Pane = "lab"): () => void {
  const store = new Store();
  for (const record of splitRecords(bytesOfBase64(base64.trim()))) store.fold.push(record);
  element.replaceChildren();
  return mount(element, store, pane);
}
