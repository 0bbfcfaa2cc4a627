// A stand-in for anywidget and its widget manager: models that count their listeners and keep what was sent.
(bundle) => {
  class Model {
    constructor(traits) {
      Object.assign(this, { traits, sent: [], handlers: [], comm_live: true });
    }
    get(name) {
      return this.traits[name];
    }
    on(event, callback, context) {
      this.handlers.push({ event, callback, context });
    }
    off(event, callback, context) {
      this.handlers = this.handlers.filter(
        (h) => !((event === null || h.event === event) && (callback === null || h.callback === callback) && (context === undefined || h.context === context)),
      );
    }
    send(message) {
      this.sent.push(message);
    }
    fire(event, ...args) {
      for (const handler of [...this.handlers]) if (handler.event === event) handler.callback(...args);
    }
  }
  const control = new Model({ answered_off_main: false, hellos: 0 });
  const capabilities = ["run", "pause", "phase", "step", "back", "goto", "run_until", "break", "source"].concat(
    ["abort", "add", "set", "priority", "preempt", "edit_token", "drop_prefixes"],
  );
  const lab = new Model({ pane: "lab", capabilities, control_id: "c" });
  lab.widget_manager = { get_model: async () => control };
  const send = (kind, first, base64List) => {
    const parts = base64List.map((text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0)));
    const buffer = new Uint8Array(parts.reduce((sum, part) => sum + 4 + part.length, 0));
    let at = 0;
    for (const part of parts) {
      new DataView(buffer.buffer).setUint32(at, part.length, true);
      buffer.set(part, at + 4);
      at += 4 + part.length;
    }
    lab.fire("msg:custom", { kind, seq: 1, first, count: parts.length }, [new DataView(buffer.buffer)]);
  };
  const url = URL.createObjectURL(new Blob([bundle], { type: "text/javascript" }));
  const start = async () => {
    const widget = await (await import(url)).default();
    const controller = new AbortController();
    await widget.initialize({ model: lab, signal: controller.signal });
    const show = async (id) => {
      const el = document.createElement("div");
      el.id = id;
      document.body.append(el);
      return { el, close: await widget.render({ model: lab, el, signal: controller.signal }) };
    };
    return { widget, show, end: () => controller.abort() };
  };
  const status = (told) => lab.fire("msg:custom", { kind: "status", ...told }, []);
  window.host = { control, lab, send, start, status };
}
