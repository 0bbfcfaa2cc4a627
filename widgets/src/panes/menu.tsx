// A button that opens a small panel under it; Escape and a press outside close it.

import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

interface MenuProps {
  name: string;
  label: ComponentChildren;
  title: string;
  children(close: () => void): ComponentChildren;
}

export function Menu({ name, label, title, children }: MenuProps): JSX.Element {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const close = (): void => setOpen(false);
  // before it is painted: a panel that moves afterwards is seen, and clicked, where it does not stay
  useLayoutEffect(() => {
    if (!open) return;
    const outside = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) close();
    };
    document.addEventListener("pointerdown", outside);
    keepInside(box.current?.querySelector(".nbe-menu"));
    box.current?.querySelector<HTMLElement>(".nbe-menu :is(button, input, select)")?.focus();
    return () => document.removeEventListener("pointerdown", outside);
  }, [open]);
  return (
    <div
      class="nbe-until"
      ref={box}
      data-menu={name}
      onKeyDown={(event) => {
        if (event.key === "Escape") {
          close();
          box.current?.querySelector("button")?.focus();
        }
        if (open) event.stopPropagation();
      }}
    >
      <button type="button" aria-haspopup="true" aria-expanded={open} title={title} onClick={() => setOpen(!open)}>
        {label}
      </button>
      {open && <div class="nbe-menu" role="group" aria-label={title}>{children(close)}</div>}
    </div>
  );
}

/** In a narrow Lab the panel moves to the left as far as it must, and shrinks to fit. */
function keepInside(panel: HTMLElement | null | undefined): void {
  const lab = panel?.closest(".nbe-lab")?.getBoundingClientRect();
  if (!panel || !lab) return;
  panel.style.maxWidth = `${Math.min(440, lab.width - 16)}px`;
  const over = panel.getBoundingClientRect().right - lab.right + 8;
  if (over > 0) panel.style.left = `${-over}px`;
}

/** A form of named fields; what is left empty is not handed over. */
export function Form({ children, submit, label }: { children: ComponentChildren; submit(values: Record<string, string>): void; label: string }): JSX.Element {
  return (
    <form
      class="nbe-form"
      onSubmit={(event) => {
        event.preventDefault();
        const entries = [...new FormData(event.currentTarget)].map(([name, value]) => [name, String(value)]);
        submit(Object.fromEntries(entries.filter(([, value]) => value !== "")));
      }}
    >
      {children}
      <span class="nbe-spring" />
      <button type="submit">{label}</button>
    </form>
  );
}

interface NumberFieldProps {
  name: string;
  label?: string;
  value?: number;
  min?: number;
  placeholder?: string;
  step?: string;
}

export function NumberField({ name, label, value, min = 0, placeholder, step }: NumberFieldProps): JSX.Element {
  return (
    <label>
      {label}
      <input type="number" name={name} min={min} step={step} placeholder={placeholder} defaultValue={value?.toString()} aria-label={label ? undefined : name} />
    </label>
  );
}

interface SelectProps {
  name: string;
  label?: string;
  value: string;
  /** Value and label; a string is both. */
  options: readonly (string | readonly [string, string])[];
  changed?(value: string): void;
  wide?: boolean;
}

export function Select({ name, label, value, options, changed, wide }: SelectProps): JSX.Element {
  return (
    <label class={wide ? "nbe-wide" : undefined}>
      {label}
      <select name={name} aria-label={label ? undefined : name} onChange={({ currentTarget }) => changed?.(currentTarget.value)}>
        {options.map((option) => {
          const [key, text] = typeof option === "string" ? [option, option] : option;
          return <option key={key} value={key} selected={key === value}>{text}</option>;
        })}
      </select>
    </label>
  );
}
