"""Debugger: an engine that a person can stop between any two moves, look into, put back, and send down another road."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from nbengine.debug import controls, display
from nbengine.debug.arguments import known_block, known_request, whole
from nbengine.debug.commands import Commands
from nbengine.debug.compare import Comparison
from nbengine.debug.explain import explain, why_not
from nbengine.debug.fork import fork_engine
from nbengine.debug.history import History, block_history, request_history
from nbengine.debug.lab_source import EngineSource
from nbengine.debug.mover import Mover, Until
from nbengine.debug.recording import Recording
from nbengine.debug.results import Outputs, Plan, Result, shown
from nbengine.debug.trace import Trace
from nbengine.debug.window import Window
from nbengine.engine import interrupts
from nbengine.engine.input_processor import ParsedPrompt, Prompt
from nbengine.engine.llm_engine import LLMEngine
from nbengine.observe.breakpoints import Breakpoint, Breakpoints, Hit, Predicate
from nbengine.observe.dump import dumps
from nbengine.observe.log import StepLog
from nbengine.observe.observer import Phase
from nbengine.observe.recorder import Recorder
from nbengine.observe.records import StepRecord
from nbengine.observe.tables import counted
from nbengine.observe.undo import UndoLog
from nbengine.observe.view import EngineView
from nbengine.outputs import RequestOutput

if TYPE_CHECKING:
    from nbengine.llm import LLM

LAB_WAKES_S = 10.0  # from making a Lab to its buttons' first sign of life: a browser may have to load it


class Debugger:
    """The window on one engine. Made by `llm.debug()`; records are kept from then on, until `detach()`.

        dbg = llm.debug()
        dbg                                     # in JupyterLab: the Lab
        dbg.add("Tell me about Rome", max_tokens=40)
        dbg.schedule(); dbg.execute(); dbg.update()
        dbg.break_on("preempted"); dbg.run()
        dbg.explain("r1"); dbg.back(2); alt = dbg.fork(max_num_batched_tokens=64)

    llm: an LLM or an LLMEngine whose core is in this process. undo: keep what `back` needs. Every change made through the
    Debugger is a record too. Not for two threads at once: a second mover gets a PhaseError, not a wait.
    """

    def __init__(self, llm: LLM | LLMEngine, *, undo: bool = True, tensors: bool = True) -> None:
        self.llm = llm
        self._window = window = Window(_engine_of(llm), undo=undo, tensors=tensors)
        self.core = window.core
        self.engine = window.engine
        self._commands = Commands(self)
        self._source = EngineSource(self)
        self._num_added = 0
        self._recordings: list[Recording] = []
        self._lab: Any = None
        self._lab_made_at = 0.0
        window.recorder.subscribe(self._source.push)
        window.on_status = self._status_changed
        window.has_buttons = self._has_buttons
        window.open()

    # ----------------------------------------------------------------------------------------------------------- requests

    def add(self, prompt: Prompt, request_id: str | None = None, *, priority: int = 0, **params: Any) -> str:
        """Queue a request; returns its id ("r1", "r2", … if none is given). params: sampling parameters by name.

        Raises InvalidRequestError, InvalidParameterError, DuplicateRequestError; then nothing has changed.
        """
        with self.mover.exclusively():
            return self.add_now(prompt, request_id, priority=priority, **params)

    def add_now(self, prompt: Prompt, request_id: str | None = None, *, priority: int = 0, **params: Any) -> str:
        """`add`, for a command that is carried out in the engine's thread already."""
        chosen = controls.sampling_params(self.engine, params)
        name = request_id if request_id is not None else self._new_id()
        self._window.outputs.pop(name, None)
        return self.engine.add_request(name, prompt, chosen, priority=priority)

    def add_group(self, lengths: list[int], *, shared: int = 0, **params: Any) -> list[str]:
        """Queue requests made of lengths alone: prompts of token ids, the first `shared` of them the same in all."""
        vocab = self.engine.limits.vocab_size or 1000
        ids: list[str] = []
        for length in lengths:
            name = self._new_id()
            prefix = [(7 * i + 11) % vocab for i in range(min(shared, length))]
            own = [(31 * i + 17 * len(ids) + 101) % vocab for i in range(length - len(prefix))]
            self.add(ParsedPrompt(prefix + own), name, **{"ignore_eos": True, **params})  # type: ignore[arg-type]
            ids.append(name)
        return ids

    def _new_id(self) -> str:
        while True:
            self._num_added += 1
            name = f"r{self._num_added}"
            if not self.engine.is_alive(name) and name not in self.view.requests:
                return name

    def abort(self, *request_ids: str) -> None:
        """End these requests at once; ids that are not alive are ignored."""
        for request_id in request_ids:
            if not isinstance(request_id, str):
                raise TypeError(f"abort() takes ids, abort('r1', 'r2'), got {request_id!r}.")
        with self.mover.exclusively():
            self.engine.abort_request(list(request_ids))

    def abort_all(self) -> list[str]:
        """End every request. Returns the ids that were alive."""
        with self.mover.exclusively():
            return self.engine.abort_all()

    def output(self, request_id: str) -> RequestOutput:
        """What a request has generated so far. Raises LookupError for an unknown one."""
        return self._window.output(request_id)

    # ------------------------------------------------------------------------------------------------------------- moving

    @property
    def mover(self) -> Mover:
        return self._window.mover

    def schedule(self) -> Plan:
        """The first phase: plan the step. Raises PhaseError, and changes nothing, if another phase is next."""
        return shown(self.mover.phase(Phase.SCHEDULE), Plan)

    def execute(self) -> Result:
        """The second phase: run the model over the plan."""
        return shown(self.mover.phase(Phase.EXECUTE), Result)

    def update(self) -> Outputs:
        """The third phase: take the sampled tokens."""
        return shown(self.mover.phase(Phase.UPDATE), Outputs)

    def phase(self) -> str:
        """Make the next phase, whichever it is; returns which it was."""
        phase = self.core.next_phase
        self.mover.phase(phase)
        return str(phase)

    def step(self, n: int = 1) -> StepRecord | Hit:
        """Make n steps (the first: what is left of the one under way). Returns the last step's record.

        A breakpoint or a pause on the way ends it; then it returns where and why.
        """
        stop = self.mover.run(max_steps=whole("step(): the number of steps", n, least=1), idle=True)
        done = self.core.step_count - (self.core.next_phase is Phase.SCHEDULE)
        return self.records.step(done) if stop.why == f"{counted(n, 'step')} done" else stop

    def run(self, until: Until = None, *, max_steps: int | None = None) -> Hit:
        """Move on until `until`, a breakpoint, a pause, or until there is nothing left to do. Returns where and why.

        until: a predicate over the view, the name of an event ("preempted"), or the number of a step to stand before.
        The Lab's buttons reach a plain cell if its kernel has subshells; Interrupt ends it in any case, at a phase boundary.
        """
        return self.mover.run(until, max_steps=_limit(max_steps))

    async def arun(self, until: Until = None, *, max_steps: int | None = None) -> Hit:
        """`run` for `await`: the notebook stays alive meanwhile."""
        return await self.mover.arun(until, max_steps=_limit(max_steps))

    def play(self) -> asyncio.Task[None]:
        """Step in the background, on the notebook's event loop, while not paused. `pause()` and the Lab stop it."""
        return self.mover.play()

    def pause(self, reason: str = "paused by hand") -> None:
        """Stop whatever moves the engine at its next phase boundary. May be called from any thread."""
        self._window.gate.pause(reason)

    def resume(self) -> None:
        """Let what waits at the gate go on. May be called from any thread."""
        self._window.gate.resume()

    # ------------------------------------------------------------------------------------------------------------ looking

    @property
    def recorder(self) -> Recorder:
        return self._window.recorder

    @property
    def view(self) -> EngineView:
        """The engine now. Live: `view.copy()` holds the moment still."""
        return self.recorder.view

    def view_at(self, step: int, phase: str = "schedule") -> EngineView:
        """The engine as it stood before `phase` of a recorded step. Moves nothing."""
        return self.recorder.view_at(whole("step", step), phase)

    @property
    def records(self) -> StepLog:
        """The recorded steps; `records.rows()` is a table for a DataFrame."""
        return self.recorder.steps

    @property
    def trace(self) -> Trace:
        """All that is recorded, to save, convert or open later."""
        return Trace(self.recorder.records())

    def record_to(self, path: str | os.PathLike[str], *, tensors: bool = False) -> Recording:
        """Write the run to a .nbtrace file from now on, while it goes on: a process that is killed loses its last second.

        Until `.close()` of what this returns, or `detach()`. tensors: each step's batch too, most of a file's size.
        """
        with self.mover.exclusively():
            recording = Recording(self.recorder, path, tensors=tensors)
        self._recordings.append(recording)
        return recording

    def explain(self, request_id: str) -> str:
        """Why the request is where it is, in a sentence with the numbers."""
        return explain(self.view, self.records, request_id)

    def why_not(self, request_id: str, step: int | None = None) -> str:
        """Why the request did not get tokens in that step (default: the last one that was planned)."""
        planned = self.view.scheduled.step if self.view.scheduled else self.view.step
        number = planned if step is None else whole("step", step)
        return why_not(self.records.step(number), request_id)

    def history(self, *, request: str | None = None, block: int | None = None) -> History:
        """What happened to one request, or to one KV block, as far as it is recorded. Raises LookupError."""
        if (request is None) == (block is None):
            raise ValueError("history() takes request=… or block=…, one of them.")
        records = self.recorder.records()
        if block is not None:
            return block_history(records, known_block(self.view, block))
        found = request_history(records, str(request))
        if not found:
            known_request(self.view, str(request))
        return found

    def describe(self) -> str:
        """The scheduler's state, a line a request, for a bug report."""
        return str(self.core.scheduler.describe())

    def dump(self) -> str:
        """The moment as JSON; `nbengine.observe.dump.loads` makes a view of it again."""
        return dumps(self.view)

    # -------------------------------------------------------------------------------------------------------- breakpoints

    @property
    def breakpoints(self) -> Breakpoints:
        return self._window.breakpoints

    def break_on(self, event: str | None = None, **criteria: Any) -> Breakpoint:
        """Stop at an event: preempted, finished, prefix_hit, prefix_miss, evicted, admitted, chunked, … or
        step_slower_than (with seconds=). criteria: request, step, phase, block, condition (a predicate over the view),
        count (stop from the count-th time on), once. All that is given must hold.
        """
        names = {"request": "request_id", "block": "block_id"}
        given = {names.get(name, name): value for name, value in criteria.items()}
        return self.breakpoints.add(event=event, **given)

    def break_when(self, predicate: Predicate, **criteria: Any) -> Breakpoint:
        """Stop each time that `predicate(view)` becomes true."""
        return self.breakpoints.add(when=predicate, **criteria)

    # -------------------------------------------------------------------------------------------------- back, another road

    @property
    def undo(self) -> UndoLog | None:
        return self._window.undo

    def back(self, n: int = 1) -> EngineView:
        """Undo n steps; in the middle of a step, what has been made of it counts as one. Returns the view."""
        with self.mover.exclusively():
            self.rewind_by(n)
        return self.view

    def rewind_by(self, n: int) -> None:
        """`back`, for a command that is carried out in the engine's thread already."""
        whole("back(): the number of steps", n, least=1)
        at = self.core.step_count + (self.core.next_phase is not Phase.SCHEDULE)
        if n > at:
            raise LookupError(f"back({n}) asks for more than there is: {counted(at, 'step')} so far.")
        self.rewind_to(at - n)

    def goto(self, step: int) -> EngineView:
        """Put the engine back to the moment before it scheduled `step`: queues, blocks, KV content, text, statistics.

        The same commands then give the same records and tokens. Raises LookupError if that moment is not kept any more.
        """
        with self.mover.exclusively():
            self.rewind_to(step)
        return self.view

    def rewind_to(self, step: int) -> None:
        """`goto`, for a command that is carried out in the engine's thread already."""
        if whole("step", step) > self.core.step_count:
            now = self.core.step_count
            raise LookupError(f"Step {step} has not happened yet: the engine is at {now}. run(until={step}) goes there.")
        self._window.goto(step)
        self._num_added = 0  # the next request gets the first name that is free then, as it did the first time

    def fork(self, **changed: Any) -> Debugger:
        """A second engine that goes on from this moment with other options, sharing the weights.

        changed: EngineArgs' names: limits, policy, scheduler_cls, num_gpu_blocks_override. Between steps only.
        """
        with self.mover.exclusively(), interrupts.deferred():
            fork = Debugger(fork_engine(self.engine, changed), undo=self.undo is not None)
        fork._num_added = self._num_added
        return fork

    def compare(self, other: Debugger | Trace) -> Comparison:
        """Where the two runs first differ, and their totals side by side."""
        if not isinstance(other, Debugger | Trace):
            raise TypeError(f"compare() takes a Debugger or a Trace, got {type(other).__name__}.")
        return Comparison(self.trace, other if isinstance(other, Trace) else other.trace)

    # ------------------------------------------------------------------------------------------------- changes by hand

    def set(self, **options: Any) -> None:
        """Change the scheduler's options: max_num_seqs, max_num_batched_tokens, policy, watermark, …"""
        with self.mover.exclusively():
            controls.set_options(self.core, self.recorder, options)

    def set_priority(self, request_id: str, priority: int) -> None:
        """The smallest number goes first, under policy="priority"."""
        with self.mover.exclusively():
            controls.set_priority(self.core, self.recorder, request_id, priority)

    def preempt(self, request_id: str) -> None:
        """Take a running request's blocks. It waits at the front of the queue and computes its tokens again."""
        with self.mover.exclusively():
            controls.preempt(self.core, self.recorder, request_id)

    def edit_token(self, request_id: str, token: int | str) -> int:
        """Between execute and update: replace the token that was sampled for a request. Returns the one that was there."""
        with self.mover.exclusively():
            return self.edit_token_now(request_id, token)

    def edit_token_now(self, request_id: str, token: int | str) -> int:
        """`edit_token`, for a command that is carried out in the engine's thread already."""
        token_id = controls.one_token(self.engine, token) if isinstance(token, str) else whole("token", token)
        return controls.edit_token(self.core, self.recorder, request_id, token_id, self.engine.limits.vocab_size)

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget all cached prefixes. False, and nothing changes, while requests hold blocks that may not be preempted."""
        with self.mover.exclusively():
            return self.engine.reset_prefix_cache(preempt_running)

    # ----------------------------------------------------------------------------------------------------- in a notebook

    def post(self, command: dict[str, Any]) -> None:
        """Take a command of the Lab, in any thread: it is carried out at the next phase boundary."""
        self._commands.post(command)

    def say(self, message: str) -> None:
        """One sentence for the person at the Lab: a command that was refused, say."""
        self._source.message = message
        self._status_changed()

    def state(self) -> tuple[str, str]:
        """("running" | "paused" | "idle" | "failed" | "closed", why)."""
        return self._window.state()

    @property
    def is_busy(self) -> bool:
        return self.mover.is_driving

    @property
    def lab(self) -> Any:
        """The Lab: one widget a Debugger, in as many cells as wanted. Raises NBEngineError without nbengine_widgets."""
        if self._lab is None:
            self._lab = display.make_lab(self._source)
            self._lab_made_at = time.monotonic()
        return self._lab

    def _has_buttons(self) -> bool:
        """Whether the Lab's buttons work while a cell holds the main thread. One that is new is given time to show it."""
        while self._lab is not None:
            if self._lab.control.answered_off_main:
                return True
            if time.monotonic() > self._lab_made_at + LAB_WAKES_S:
                break
            time.sleep(0.05)
        return False

    def watch(self) -> Any:
        """The moment as a plain table in one output that follows the engine: where a host shows no widgets.

        `.close()` ends that. Raises NBEngineError without nbengine_widgets.
        """
        return display.plain_view(self._source)

    def _status_changed(self) -> None:
        if self._lab is not None:
            self._lab.status_changed()

    def snapshot_bundle(self) -> dict[str, Any]:
        """The moment without a widget: text, a table, a picture."""
        return self._window.snapshot_bundle()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if display.has_lab():
            return self.lab._repr_mimebundle_(**kwargs)
        return self.snapshot_bundle()

    def __repr__(self) -> str:
        state, why = self.state()
        return f"Debugger of {self.view.header.model}, {state}{f' ({why})' if why else ''}\n{self.view}"

    @property
    def is_attached(self) -> bool:
        """Whether it still watches its engine."""
        return self.core.observer is self.recorder

    def detach(self) -> None:
        """Let go of the engine: it is as fast as before, and what was recorded stays here to look at.

        From then on this Debugger moves and changes nothing (PhaseError).
        """
        self._window.close()
        for recording in self._recordings:
            recording.close()


def _limit(max_steps: int | None) -> int | None:
    return None if max_steps is None else whole("max_steps", max_steps, least=1)


def _engine_of(llm: LLM | LLMEngine) -> LLMEngine:
    return llm if isinstance(llm, LLMEngine) else llm.llm_engine
