"""Window: recorder, gate, breakpoints, undo log and mover of one engine, wired to it and to each other."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import Any

from nbengine.debug.display import illustrated
from nbengine.debug.mover import Mover
from nbengine.debug.texts import token_texts
from nbengine.debug.trace import TraceWriter
from nbengine.engine.llm_engine import LLMEngine
from nbengine.errors import PhaseError, StoppedError
from nbengine.observe.breakpoints import Breakpoints, Hit
from nbengine.observe.gate import Gate
from nbengine.observe.observer import Phase
from nbengine.observe.recorder import Recorder
from nbengine.observe.records import FINISHED_KEPT, Aborted, AnyRecord, Changed, Failed, Header, Keyframe, Scheduled, Updated
from nbengine.observe.undo import UndoLog
from nbengine.observe.view import EngineView
from nbengine.outputs import RequestOutput

logger = logging.getLogger(__name__)

CRASH_STEPS = 64


class Window:
    """outputs: the last output of each request, as long as the front has handed none of it out elsewhere.

    on_status: called when what a person should know (paused, why, breakpoints hit) may have changed, in any thread.
    has_buttons: whether somebody can command the engine while a call holds the main thread: the Lab's buttons may come to
    life a moment after it is shown.
    """

    def __init__(self, engine: LLMEngine, *, undo: bool, tensors: bool) -> None:
        core = getattr(engine.engine_core, "core", None)
        if core is None:
            raise PhaseError("This engine's core runs in another process, and the Debugger needs it in this one.")
        self.engine = engine
        self.core = core
        self.outputs: dict[str, RequestOutput] = {}
        self.on_status: Callable[[], None] | None = None
        self.has_buttons: Callable[[], bool] = lambda: False
        self.crash_dir = Path(tempfile.gettempdir())
        self.crash_file: Path | None = None
        self.recorder = Recorder(core, tensors=tensors)
        self.breakpoints = Breakpoints(core.config.cache.num_blocks)
        self.gate = Gate(on_wait=self._waiting, on_left=self._left)
        self.undo: UndoLog | None = None
        if undo:
            self.undo = UndoLog(core, mark=engine.mark, restore_mark=engine.restore)
            self.gate.before = self.undo.before_schedule
        self.mover = Mover(engine, core, self.gate, lambda: self.recorder.view)
        self.mover.on_output = self._keep_outputs
        self.is_open = False

    def open(self) -> None:
        recorder = self.recorder
        if self.engine.tokenizer is not None:
            recorder.texts_of = token_texts(self.engine.tokenizer)
        recorder.prompt_of = self._prompt_of
        recorder.after = self._after
        recorder.on_failure = self._failed
        recorder.attach()  # refused if somebody else watches, whose gate stays then
        self.core.gate = self.gate
        recorder.view.painter = _picture
        self.is_open = True

    def close(self) -> None:
        self.mover.stop_playing()
        self.mover.closed = "This Debugger is detached: llm.debug() attaches a new one."
        if self.undo is not None:
            self.undo.clear()  # what comes now passes it by
        self.gate.resume()
        self.recorder.detach()
        if self.core.gate is self.gate:
            self.core.gate = None
        self.is_open = False

    # ------------------------------------------------------------------------------------------- in the engine's thread

    def _after(self, record: AnyRecord) -> None:
        """Each record passes here, once the view has taken it in."""
        if self.undo is not None:
            self._note_for_undo(self.undo, record)
        if isinstance(record, Changed) and record.what in ("pause", "rewind", "reset"):
            return
        hits = self.breakpoints.check(record, self.recorder.view)
        if isinstance(record, Updated) and record.violations:
            view = self.recorder.view
            hits.insert(0, Hit(0, view.step, view.phase, f"the books do not add up: {record.violations[0]}"))
        if hits:
            self.recorder.on_changed("pause", {"reason": str(hits[0]), "breakpoint": hits[0].number})
        self.mover.noted(record, hits)
        if isinstance(record, Aborted) and record.reason == "stop" and not self.mover.is_moving:
            self._left()  # a blocking call's step turned out to end a request after it was over: a stop string

    @staticmethod
    def _note_for_undo(undo: UndoLog, record: AnyRecord) -> None:
        if isinstance(record, Scheduled):
            undo.scheduled(record.step, record.block_ops)
        elif isinstance(record, Changed) and record.what == "reset":
            undo.clear()
        elif not isinstance(record, Header | Keyframe):
            undo.changed(getattr(record, "step", 0), getattr(record, "block_ops", []))

    def _failed(self, error: BaseException) -> None:
        """A phase raised: keep the last steps in a file that opens at the failing one."""
        name = f"nbengine-crash-{time.strftime('%Y%m%d-%H%M%S')}-step{self.core.step_count}"
        paths = (self.crash_dir / f"{name}{more}.nbtrace" for more in chain([""], (f"-{n}" for n in count(2))))
        path = next(path for path in paths if not path.exists())
        header = self.recorder.log.header
        if header is None:
            return
        try:
            with TraceWriter(path, header) as writer:
                for data in list(self.recorder.log.upto(max(0, self.core.step_count - CRASH_STEPS)))[1:]:
                    writer.write_encoded(data)
        except OSError as problem:
            error.add_note(f"The last steps could not be saved to {path}: {problem}")
            return
        self.crash_file = path
        error.add_note(f"The last steps are in {path}: Trace.open() shows them, up to the failing one.")

    def _waiting(self, phase: Phase, reason: str) -> None:
        """A blocking call (llm.generate) has come to the gate and is to wait there.

        If it stopped by itself (a breakpoint, a pause before the call) and holds the main thread, and no Lab's button is
        alive, it would wait for ever. Then the call ends here instead, and is gone on with by hand.
        """
        self._moved()
        if self.gate.held_by != threading.get_ident():
            return  # somebody else did it, and is there to undo it
        place = f"at step {self.core.step_count}, before {phase}: {reason}"
        if threading.current_thread() is not threading.main_thread():
            logger.warning("The engine stands %s. It goes on with resume() of its Debugger.", place)
        elif not self.has_buttons():
            self.gate.resume()
            raise StoppedError(
                f"Stopped {place}. Everything is in place: look at it with the Debugger, go on with its step() or run(), "
                "and fetch the outputs with llm.wait_for_completion(). Where the Lab is shown and its buttons are alive, "
                "the call waits for them instead."
            )

    def _left(self) -> None:
        """A step of a blocking call is over. If it stopped where nothing is left to do, there is nobody to hold back: the
        next call is not to find the gate closed."""
        gate = self.gate
        if gate.paused and gate.held_by == threading.get_ident() and not self.core.has_unfinished_requests():
            gate.resume()
        self._moved()

    def _moved(self) -> None:
        if self.on_status is not None:
            self.on_status()

    def _keep_outputs(self, made: list[RequestOutput]) -> None:
        for output in made:
            self.outputs.pop(output.request_id, None)
            self.outputs[output.request_id] = output
        while len(self.outputs) > FINISHED_KEPT:
            del self.outputs[next(iter(self.outputs))]

    def _prompt_of(self, request_id: str) -> str | None:
        requests = self.engine.output_processor.requests
        state = requests.get(request_id) or requests.get(request_id.partition("_")[2])
        return state.prompt if state is not None else None

    # ----------------------------------------------------------------------------------------------------------- looking

    def output(self, request_id: str) -> RequestOutput:
        live = {output.request_id: output for output in self.engine.partial_outputs()}
        found = live.get(request_id) or self.outputs.get(request_id)
        if found is None:
            known = ", ".join(dict.fromkeys([*live, *self.outputs])) or "none"
            raise LookupError(f"There is no output of {request_id!r} here; there are: {known}.")
        return found

    def state(self) -> tuple[str, str]:
        view, gate = self.recorder.view, self.gate
        if not self.is_open:
            return "closed", "detached from the engine"
        if isinstance(view.last_record, Failed):
            return (
                "failed",
                f"{view.last_record.phase} of step {view.last_record.step}: {view.last_record.error.splitlines()[0]}",
            )
        if gate.paused and not gate.granted:
            return "paused", gate.reason
        if (self.mover.is_driving or self.mover.is_playing or self.core.in_step) and self.core.has_unfinished_requests():
            return "running", ""
        stopped = self.mover.stopped
        here = (self.core.step_count, str(self.core.next_phase))
        return "idle", str(stopped) if stopped is not None and (stopped.step, stopped.phase) == here else ""

    def snapshot_bundle(self) -> dict[str, Any]:
        from nbengine.debug.plots import overview_png

        return illustrated(self.recorder.view._repr_mimebundle_(), overview_png(self.recorder.records()))

    # -------------------------------------------------------------------------------------------------------- going back

    def goto(self, step: int) -> None:
        """Rewind. At a phase boundary, in the engine's thread."""
        if self.undo is None:
            raise PhaseError("This Debugger keeps no undo log: make it with undo left on, llm.debug().")
        if step == self.core.step_count and self.core.next_phase is Phase.SCHEDULE:
            return
        self.undo.restore(step)
        self.outputs = {name: out for name, out in self.outputs.items() if not self.engine.is_alive(name)}
        self.mover.forget_stop()
        self.recorder.rewound(step)
        self.breakpoints.rewound(step, self.recorder.view)


def _picture(view: EngineView) -> dict[str, Any]:
    from nbengine.debug.plots import view_png  # matplotlib is slow to import: only when a picture is wanted

    return view_png(view)
