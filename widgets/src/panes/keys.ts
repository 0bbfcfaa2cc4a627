// Keys, for as long as the focus is inside.

import type { Store } from "../host/store";

export function onKey(event: KeyboardEvent, store: Store): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
  const onButton = target.tagName === "BUTTON" || target.tagName === "SUMMARY";
  const actions: Record<string, () => void> = {
    n: () => store.command("phase"),
    s: () => store.command("step"),
    b: () => store.command("back", { steps: 1 }),
    ArrowLeft: () => (event.shiftKey ? store.scrubPhase(-1) : store.scrub(-1)),
    ArrowRight: () => (event.shiftKey ? store.scrubPhase(1) : store.scrub(1)),
    Home: () => store.lookAtStep(store.fold.history.base),
    End: () => store.lookAtStep(store.fold.live.shownStep),
  };
  if (!onButton) actions[" "] = () => store.command(runs(store) ? "pause" : "run");
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action();
}

function runs(store: Store): boolean {
  return store.isRecording ? store.playing : store.status.state === "running";
}
