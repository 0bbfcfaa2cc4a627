"""The Lab's commands. They come in any thread; what changes the engine is done at a phase boundary, in its own thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from nbengine.debug import controls
from nbengine.debug.lab_breakpoints import Threshold, criteria

if TYPE_CHECKING:
    from nbengine.debug.debugger import Debugger


class Commands:
    """post({"name": …, "args": {…}, "id": n}); see nbengine_widgets.source.CAPABILITIES for what each name takes."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger

    def post(self, command: dict[str, Any]) -> None:
        """Take a command and return. One that is refused says so in the source's status."""
        name, args = str(command.get("name")), dict(command.get("args") or {})
        handler: Callable[[dict[str, Any]], None] | None = getattr(self, f"_{name}", None) if name in NAMES else None
        if handler is None:
            self._debugger.say(f"There is no command {name!r}; there are: {', '.join(NAMES)}.")
            return
        self._debugger.say(self._debugger.mover.closed)
        if self._debugger.mover.closed:
            return
        try:
            handler(args)
        except Exception as error:  # of the person's, not of the engine's: it is told and nothing else happens
            self._debugger.say(_sentence(error))

    # ----------------------------------------------------------------------------------------------------------- the gate

    def _pause(self, args: dict[str, Any]) -> None:
        self._debugger.pause()

    def _run(self, args: dict[str, Any]) -> None:
        self._debugger.mover.go_on()

    def _phase(self, args: dict[str, Any]) -> None:
        self._debugger.mover.gate.grant(phases=1)

    def _step(self, args: dict[str, Any]) -> None:
        self._debugger.mover.gate.grant(steps=max(1, _number(args, "count", 1)))

    def _run_until(self, args: dict[str, Any]) -> None:
        what, value = str(args.get("what")), args.get("value")
        debugger = self._debugger
        if what in ("preempted", "finished", "admitted"):
            debugger.break_on(what, once=True)
        elif what == "step":
            debugger.break_on(step=_number(args, "value"), once=True)
        elif what == "request":
            debugger.break_on("finished", request=str(value), once=True)
        elif what == "free_blocks":
            debugger.break_when(Threshold("free_blocks", "<", _number(args, "value")), once=True)
        elif what != "idle":
            raise ValueError(f"Cannot run until {what!r}.")
        debugger.mover.go_on()

    def _break(self, args: dict[str, Any]) -> None:
        points, action = self._debugger.breakpoints, args.get("action", "add")
        given = {name: value for name, value in args.items() if name not in ("action", "number")}
        if action == "add":
            points.add(**criteria(given))
        elif action == "edit":
            points.edit(_number(args, "number"), **criteria(given))
        elif action == "remove":
            points.remove(_number(args, "number"))
        elif action in ("enable", "disable"):
            points.enable(_number(args, "number"), action == "enable")
        else:
            raise ValueError(f"A breakpoint can be added, edited, enabled, disabled and removed, not {action!r}.")

    # ------------------------------------------------------------------------------------------------- at the next boundary

    def _back(self, args: dict[str, Any]) -> None:
        debugger, steps = self._debugger, _number(args, "steps", 1)
        debugger.pause("rewound")
        self._submit(lambda: debugger.rewind_by(steps))

    def _goto(self, args: dict[str, Any]) -> None:
        debugger, step = self._debugger, _number(args, "step")
        debugger.pause("rewound")
        self._submit(lambda: debugger.rewind_to(step))

    def _abort(self, args: dict[str, Any]) -> None:
        engine, name = self._debugger.engine, _text(args, "request")
        if not engine.is_alive(name):
            raise LookupError(f"There is no live request {name!r} to abort.")
        self._submit(lambda: engine.abort_request(name))

    def _add(self, args: dict[str, Any]) -> None:
        debugger, prompt = self._debugger, _text(args, "prompt")
        rest = {name: value for name, value in args.items() if name != "prompt"}
        self._submit(lambda: debugger.add_now(prompt, **rest))

    def _set(self, args: dict[str, Any]) -> None:
        debugger = self._debugger
        self._submit(lambda: controls.set_options(debugger.core, debugger.recorder, args))

    def _priority(self, args: dict[str, Any]) -> None:
        debugger, name, priority = self._debugger, _text(args, "request"), _number(args, "priority")
        self._submit(lambda: controls.set_priority(debugger.core, debugger.recorder, name, priority))

    def _preempt(self, args: dict[str, Any]) -> None:
        debugger, name = self._debugger, _text(args, "request")
        self._submit(lambda: controls.preempt(debugger.core, debugger.recorder, name))

    def _edit_token(self, args: dict[str, Any]) -> None:
        debugger, name, token = self._debugger, _text(args, "request"), _given(args, "token")
        self._submit(lambda: debugger.edit_token_now(name, token))

    def _drop_prefixes(self, args: dict[str, Any]) -> None:
        engine, preempt = self._debugger.engine, bool(args.get("preempt_running"))
        self._submit(lambda: _dropped(engine.reset_prefix_cache(preempt)))

    def _submit(self, change: Callable[[], Any]) -> None:
        """Have it done in the engine's thread; if it is refused, say why."""
        future = self._debugger.mover.gate.submit(change)
        future.add_done_callback(self._tell)

    def _tell(self, future: Future[Any]) -> None:
        error = future.exception()
        self._debugger.say(_sentence(error) if error is not None else "")


NAMES = (
    "run",
    "pause",
    "phase",
    "step",
    "back",
    "goto",
    "run_until",
    "break",
    "abort",
    "add",
    "set",
    "priority",
    "preempt",
    "edit_token",
    "drop_prefixes",
)


def _given(args: dict[str, Any], name: str) -> Any:
    if args.get(name) is None:
        raise ValueError(f"The command needs {name!r}.")
    return args[name]


def _text(args: dict[str, Any], name: str) -> str:
    return str(_given(args, name))


def _number(args: dict[str, Any], name: str, otherwise: int | None = None) -> int:
    value = args.get(name, otherwise) if otherwise is not None else _given(args, name)
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a whole number, got {value!r}.") from error


def _dropped(done: bool) -> None:
    if not done:
        raise ValueError("The prefix cache was kept: running requests hold blocks. Preempt them too, and it can be dropped.")


def _sentence(error: BaseException) -> str:
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error).strip().splitlines()
    return text[0] if text else type(error).__name__
