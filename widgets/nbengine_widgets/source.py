"""LabSource: all that a Lab asks of whoever it shows. `nbengine.debug` implements it for a live engine and for a trace.

The Lab sees records (bytes, as nbengine.observe.records.encoder makes them) and small dicts; it never touches an engine.
Records are numbered from 0 in the order of the stream, the header being number 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

RecordListener = Callable[[int, bytes], None]
"""Called with each new record and its number, in the engine's thread, right after it happened. Returns at once."""

CAPABILITIES = (
    *("run", "pause", "phase", "step", "back", "goto", "run_until", "break"),
    *("abort", "add", "set", "priority", "preempt", "edit_token", "drop_prefixes", "source"),
)
"""Commands that a source may offer. `post` gets {"name": one of these, "args": {...}, "id": a number}:

run, pause, phase, step   args {} ("step" may carry {"count": n})
back                      args {"steps": n}: undo n steps
goto                      args {"step": n}: rewind the engine to the start of step n; 0 = the very start
run_until                 args {"what": "preempted" | "finished" | "admitted" | "step" | "free_blocks" | "idle" | "request",
                                "value": a number or a request id, if it needs one}: run, and pause when that happens
break                     args {"action": "add", …what} | {"action": "edit", "number": n, …what}
                             | {"action": "enable" | "disable" | "remove", "number": n}; what: any of event (a name),
                             request, step, phase, block, seconds, count, once, condition
                             (["free_blocks" | "waiting" | "running" | "step", "<" | ">", number])
abort, preempt            args {"request": id}
priority                  args {"request": id, "priority": n}
edit_token                args {"request": id, "token": an id or a text}: between execute and update
add                       args {"prompt": text, "priority": n, …sampling parameters}
set                       args {option: value, …}: max_num_seqs, max_num_batched_tokens, policy, long_prefill_token_threshold
drop_prefixes             args {"preempt_running": bool}: forget all cached prefixes
source                    no command: `source_lines` is asked
"""


class LabSource(Protocol):
    """Every method may be called from any thread, and none may wait for the engine."""

    def capabilities(self) -> list[str]:
        """Those of CAPABILITIES that this source offers. None for a saved trace: the Lab then only plays it."""

    def header(self) -> bytes:
        """The Header record."""

    def num_records(self) -> int:
        """How many records there are: the number of the next one."""

    def records_since(self, number: int) -> list[bytes] | None:
        """The records from `number` on, in order; None if the first of them is no longer kept."""

    def keyframe(self) -> tuple[int, list[bytes]]:
        """(n, records): records that stand for all before number n: a Header, Texts, a Keyframe."""

    def subscribe(self, callback: RecordListener) -> Callable[[], None]:
        """Have `callback` called with each new record; returns what ends that."""

    def status(self) -> dict[str, Any]:
        """What the records do not tell, small: any of

        state: "running" | "paused" | "idle" | "failed" | "closed"; reason: why it is paused (a sentence);
        tokens_per_s; breakpoints: [{number, text, enabled, hits, error, …what it was made of}]; message: one more
        sentence for the person, e.g. a refused command; busy: a cell holds the engine, so that commands arrive
        at the next phase.
        """

    def post(self, command: dict[str, Any]) -> None:
        """Take a command: put it on a queue and return. Its effect shows in the records and in `status()`."""

    def source_lines(self, file: str, line: int) -> dict[str, Any] | None:
        """{"file", "first_line", "lines": [str]} around a line that a Decision names; None if it cannot be read."""

    def static_bundle(self) -> dict[str, Any]:
        """MIME bundle of a picture of the moment, for readers without a kernel: text/plain, text/html, image/png…"""
