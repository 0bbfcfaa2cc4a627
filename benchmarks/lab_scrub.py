"""How long a scrub of the Lab takes to repaint, with 10,000 blocks, 500 requests and 5,000 steps, in Chromium.

    python benchmarks/lab_scrub.py [--frames 200] [--blocks 10000] [--requests 500] [--steps 5000]

Opens the run as a static page and drags the timeline: near steps one after the other, as a hand does, and jumps to anywhere.
Each frame is timed from the scrub to the end of its painting task, without the wait for the display. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "widgets" / "tests"), str(ROOT / "widgets")]

TARGET_MS = 16.0

# Draws within the frame callback that follows the scrub; the message posted from within it comes after style and layout.
TIME_FRAMES = """async steps => {
  const timeline = document.querySelector(".nbe-time"), lab = document.querySelector(".nbe-root");
  const box = timeline.getBoundingClientRect(), [first, last] = [timeline.ariaValueMin, timeline.ariaValueMax].map(Number);
  const drag = (type, step) => timeline.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerId: 1, buttons: 1,
    clientX: box.left + 84 + (box.width - 90) * (step - first + 0.5) / (last - first + 3), clientY: box.top + 40 }));
  timeline.setPointerCapture = () => {};
  drag("pointerdown", steps[0]);
  const times = [];
  for (const step of steps) {
    await new Promise(done => requestAnimationFrame(done));
    const before = performance.now();
    drag("pointermove", step);
    const handled = performance.now() - before;
    await new Promise(done => requestAnimationFrame(() => {
      const start = performance.now();
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => (times.push(handled + performance.now() - start), done());
      port2.postMessage(0);
    }));
  }
  return times;
}"""


def measure(page: Page, steps: list[int]) -> dict[str, float]:
    times = sorted(page.evaluate(TIME_FRAMES, steps))
    share = {"median": 0.5, "p95": 0.95, "p99": 0.99}
    figures = {name: times[int(part * (len(times) - 1))] for name, part in share.items()}
    return {name: round(value, 2) for name, value in (figures | {"worst": times[-1]}).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--frames", type=int, default=200)
    options = parser.parse_args()
    result = run(options.blocks, options.requests, options.steps, options.frames)
    for name in ("near", "jumps"):
        print(f"{name:>6}: " + ", ".join(f"{key} {value} ms" for key, value in result[name].items()))
    print(f"open {result['open_s']} s, {result['dom_nodes']} DOM nodes; the aim is {TARGET_MS:g} ms for 95 of 100 frames")
    print(json.dumps(result))


def run(blocks: int, requests: int, steps: int, frames: int) -> dict[str, Any]:
    import demo
    from nbengine_widgets.static_page import page_html

    from tests.ui.lab_server import launch

    records = demo.crowd(blocks=blocks, requests=requests, steps=steps).records
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "lab.html"
        file.write_text(page_html(records))
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        started = time.monotonic()
        page.goto(file.as_uri())
        page.wait_for_selector(".nbe-map canvas")
        open_s = round(time.monotonic() - started, 2)
        measure(page, [steps // 2] * 20)  # warm
        middle = steps // 2 - frames // 2
        result = {
            "blocks": blocks,
            "requests": requests,
            "steps": steps,
            "bytes": sum(map(len, records)),
            "open_s": open_s,
            "dom_nodes": page.evaluate("document.querySelectorAll('*').length"),
            "near": measure(page, [middle + i for i in range(frames)]),
            "jumps": measure(page, [(i * 7919) % steps for i in range(frames)]),
        }
        browser.close()
    result["within_aim"] = max(result["near"]["p95"], result["jumps"]["p95"]) < TARGET_MS
    return result


if __name__ == "__main__":
    main()
