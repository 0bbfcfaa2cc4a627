// "run until…": a menu of conditions at which the engine pauses, and the breakpoints that are set.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Store } from "../host/store";

const CHOICES = [
  { what: "preempted", label: "a request is preempted" },
  { what: "admitted", label: "a request is admitted" },
  { what: "finished", label: "a request finishes" },
  { what: "idle", label: "all is done" },
  { what: "step", label: "step", input: "number" },
  { what: "free_blocks", label: "fewer free blocks than", input: "number" },
] as const;

export function RunUntil({ store }: { store: Store }): JSX.Element {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return;
    const close = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", close);
    box.current?.querySelector<HTMLElement>(".nbe-menu button, .nbe-menu input")?.focus();
    return () => document.removeEventListener("pointerdown", close);
  }, [open]);
  const run = (what: string, value?: number): void => {
    setOpen(false);
    store.command("run_until", value === undefined ? { what } : { what, value });
  };
  return (
    <div
      class="nbe-until"
      ref={box}
      onKeyDown={(event) => {
        if (event.key === "Escape") setOpen(false);
        if (open) event.stopPropagation();
      }}
    >
      <button type="button" aria-haspopup="true" aria-expanded={open} title="Run until something happens" onClick={() => setOpen(!open)}>
        run until…
      </button>
      {open && (
        <div class="nbe-menu">
          {CHOICES.map((choice) =>
            "input" in choice ? (
              <NumberChoice key={choice.what} label={choice.label} start={store.fold.live.step + 10} run={(value) => run(choice.what, value)} />
            ) : (
              <button key={choice.what} type="button" onClick={() => run(choice.what)}>
                {choice.label}
              </button>
            ),
          )}
          <Breakpoints store={store} />
        </div>
      )}
    </div>
  );
}

function NumberChoice({ label, start, run }: { label: string; start: number; run(value: number): void }): JSX.Element {
  const [value, setValue] = useState(label === "step" ? start : 4);
  return (
    <form
      class="nbe-choice"
      onSubmit={(event) => {
        event.preventDefault();
        run(value);
      }}
    >
      <label>
        {label} <input type="number" min="0" value={value} onInput={(event) => setValue(Number(event.currentTarget.value))} />
      </label>
      <button type="submit">run</button>
    </form>
  );
}

function Breakpoints({ store }: { store: Store }): JSX.Element | null {
  const points = store.status.breakpoints ?? [];
  if (!points.length || !store.can("break")) return null;
  const tell = (action: string, number: number): void => store.command("break", { action, number });
  return (
    <fieldset class="nbe-points">
      <legend>breakpoints</legend>
      {points.map((point) => (
        <div key={point.number}>
          <label>
            <input type="checkbox" checked={point.enabled} onChange={() => tell(point.enabled ? "disable" : "enable", point.number)} />
            {point.number}: {point.text}
          </label>
          <span class="nbe-quiet">{point.hits}×</span>
          <button type="button" aria-label={`Remove breakpoint ${point.number}`} title="Remove" onClick={() => tell("remove", point.number)}>
            ×
          </button>
        </div>
      ))}
    </fieldset>
  );
}
