"""Runs of the pretend engine: the story of the mock, and a crowd.

    python widgets/tests/demo.py page lab.html            # the nine-request story, as a static page
    python widgets/tests/demo.py page big.html --big      # 10,000 blocks, 500 requests, 5,000 steps
    python widgets/tests/demo.py fixture demo.json        # records and canonical views

Needs nbengine and nbengine_widgets to be importable.
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path

from demo_engine import Ask, Engine

STORY = [
    Ask("r1", 0, 54, 22, 32),
    Ask("r2", 1, 52, 24, 32),
    Ask("r4", 2, 74, 62, 32),
    Ask("r5", 9, 56, 70),
    Ask("r6", 14, 48, 60),
    Ask("r8", 20, 83, 70),
    Ask("r7", 34, 77, 50),
    Ask("r9", 37, 97, 30),
    Ask("r10", 38, 60, 30, 32),
]


def story(steps: int = 43, *, blocks: int = 32, last_phase: str = "schedule", views: bool = False) -> Engine:
    """The stream of the mock: eight requests on 31 blocks, one preempted near the end; stands after schedule() of a step."""
    engine = Engine(blocks=blocks, block_size=16, budget=32, max_seqs=8)
    for step in range(steps):
        for ask in STORY:
            if ask.step == step:
                engine.add(ask)
        for phase in ("schedule", "execute", "update"):
            getattr(engine, phase)()
            if views and (step % 5 == 0 or step > steps - 6):
                engine.look()
            if step == steps - 1 and phase == last_phase:
                return engine
        if step % 20 == 19:
            engine.emit(engine.keyframe())
    return engine


def crowd(*, blocks: int = 10_000, requests: int = 500, steps: int = 5_000) -> Engine:
    """As much as the Lab must bear."""
    engine = Engine(blocks=blocks, block_size=16, budget=2048, max_seqs=256, batches=False)
    asks = [Ask(f"r{i}", i * steps // requests // 2, 100 + i * 37 % 700, 150 + i * 53 % 1500, 64) for i in range(requests)]
    asks[: requests // 2] = [Ask(f"r{i}", i // 8, 100 + i * 37 % 500, 600 + i * 53 % 1500, 64) for i in range(requests // 2)]
    for step in range(steps):
        for ask in asks:
            if ask.step == step:
                engine.add(ask)
        engine.schedule()
        engine.execute()
        engine.update()
    return engine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["page", "fixture"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--steps", type=int, default=43)
    options = parser.parse_args()
    engine = crowd() if options.big else story(options.steps, views=options.what == "fixture")
    if options.what == "page":
        from nbengine_widgets.static_page import page_html

        options.out.write_text(page_html(engine.records))
    else:
        records = [base64.b64encode(record).decode() for record in engine.records]
        options.out.write_text(json.dumps({"records": records, "views": engine.views}))


if __name__ == "__main__":
    main()
