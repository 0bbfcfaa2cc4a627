"""The Lab's commands. They come in any thread; what changes the engine is done at a phase boundary, in its own thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

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
        self._debugger.say("")
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
        self._debugger.mover.gate.grant(steps=max(1, int(args.get("count", 1))))

    def _run_until(self, args: dict[str, Any]) -> None:
        what, value = str(args.get("what")), args.get("value")
        debugger = self._debugger
        if what in ("preempted", "finished", "admitted"):
            debugger.break_on(what, once=True)
        elif what == "step":
            debugger.break_on(step=int(value or 0), once=True)
        elif what == "request":
            debugger.break_on("finished", request=str(value), once=True)
        elif what == "free_blocks":
            limit = int(value or 0)
            debugger.break_when(lambda view: view.free_blocks <= limit, label=f"at most {limit} blocks are free", once=True)
        elif what != "idle":
            raise ValueError(f"Cannot run until {what!r}.")
        debugger.mover.go_on()

    # ------------------------------------------------------------------------------------------------- at the next boundary

    def _back(self, args: dict[str, Any]) -> None:
        debugger, steps = self._debugger, int(args.get("steps", 1))
        debugger.pause("rewound")
        self._submit(lambda: debugger.rewind_by(steps))

    def _goto(self, args: dict[str, Any]) -> None:
        debugger, step = self._debugger, int(args["step"])
        debugger.pause("rewound")
        self._submit(lambda: debugger.rewind_to(step))

    def _break(self, args: dict[str, Any]) -> None:
        debugger, action = self._debugger, args.pop("action", "add")
        if action == "add":
            debugger.break_on(args.pop("event", None), **args)
        elif action == "remove":
            debugger.breakpoints.remove(int(args["number"]))
        else:
            debugger.breakpoints.enable(int(args["number"]), action == "enable")

    def _abort(self, args: dict[str, Any]) -> None:
        engine, name = self._debugger.engine, str(args["request"])
        self._submit(lambda: engine.abort_request(name))

    def _add(self, args: dict[str, Any]) -> None:
        debugger, prompt = self._debugger, args.pop("prompt")
        self._submit(lambda: debugger.add_now(prompt, **args))

    def _submit(self, change: Callable[[], Any]) -> None:
        """Have it done in the engine's thread; if it is refused, say why."""
        future = self._debugger.mover.gate.submit(change)
        future.add_done_callback(self._tell)

    def _tell(self, future: Future[Any]) -> None:
        error = future.exception()
        self._debugger.say(_sentence(error) if error is not None else "")


NAMES = ("run", "pause", "phase", "step", "back", "goto", "run_until", "break", "abort", "add")


def _sentence(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
