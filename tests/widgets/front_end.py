"""What JupyterLab is to a kernel, as far as the Lab needs it: no browser, only messages.

It opens the Lab's two models, says hello on the control model, acknowledges batches and folds the records. With `subshell`
it marks widget messages as JupyterLab does on kernels that have subshells.
"""

from __future__ import annotations

import ast
import contextlib
import queue
import struct
import time
from collections.abc import Callable
from typing import Any

from jupyter_client import BlockingKernelClient

from nbengine.observe.records import Header, decoder
from nbengine.observe.view import EngineView

HELLOS = 10
HELLO_S = 0.3
SILENCE_S = 5.0


class FrontEnd:
    """status: what the kernel said last. view: the folded records. live: a hello was answered off the main thread."""

    def __init__(self, client: BlockingKernelClient, *, subshell: bool) -> None:
        self.client = client
        self.view: EngineView | None = None
        self.status: dict[str, Any] = {}
        self.live = False
        self.hellos_answered = 0
        self._lab = self._control = ""
        self._done: set[str] = set()
        self._errors: list[str] = []
        self._subshell = self._new_subshell() if subshell else None

    def _new_subshell(self) -> str:
        self.client.control_channel.send(self.client.session.msg("create_subshell_request", {}))
        return str(self.client.get_control_msg(timeout=20)["content"]["subshell_id"])

    # ------------------------------------------------------------------------------------------------------------- cells

    def start(self, code: str) -> str:
        """Run a cell; does not wait for its end."""
        return str(self.client.execute(code))

    def run(self, code: str) -> None:
        self.wait_cell(self.start(code))

    def wait_cell(self, cell: str, timeout_s: float = 60) -> None:
        self.until(lambda: self.is_done(cell), timeout_s)
        assert not self._errors, self._errors

    def is_done(self, cell: str) -> bool:
        return cell in self._done

    def ask(self, expression: str) -> Any:
        """The value of an expression, once the kernel is between cells."""
        asked = self.client.execute("", silent=True, user_expressions={"answer": expression})
        replies: dict[str, Any] = {}

        def answered() -> bool:
            try:
                reply = self.client.get_shell_msg(timeout=0.02)
            except queue.Empty:
                return False
            replies[reply["parent_header"]["msg_id"]] = reply["content"]
            return asked in replies

        self.until(answered)
        answer = replies[asked]["user_expressions"]["answer"]
        assert answer["status"] == "ok", answer
        return ast.literal_eval(answer["data"]["text/plain"])

    # ----------------------------------------------------------------------------------------------------------- the Lab

    def connect(self) -> None:
        """Greet the control model until it answers from a thread that a cell does not hold, or ten times."""
        self.until(lambda: bool(self._lab and self._control))
        self.send({"kind": "ready", "have": 0})
        for _ in range(HELLOS):
            self.send({"kind": "hello"})
            self.listen(HELLO_S, lambda: self.live)
            if self.live:
                break

    def command(self, name: str, **args: Any) -> None:
        self.send({"kind": "command", "id": 1, "name": name, "args": args})

    def send(self, message: dict[str, Any]) -> None:
        content = {"comm_id": self._control, "data": {"method": "custom", "content": message}}
        request = self.client.session.msg("comm_msg", content)
        if self._subshell is not None:
            request["header"]["subshell_id"] = self._subshell
        self.client.shell_channel.send(request)

    # ---------------------------------------------------------------------------------------------------------- listening

    @property
    def step(self) -> int:
        return self.view.step if self.view is not None else -1

    @property
    def phase(self) -> str:
        return self.view.phase if self.view is not None else ""

    def until(self, condition: Callable[[], bool], timeout_s: float = 30) -> None:
        assert self.listen(timeout_s, condition), f"it never came; status {self.status}, step {self.step}, {self._errors}"

    def listen(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> bool:
        """Take what the kernel publishes, for so long or until it is enough; whether it was."""
        heard = time.monotonic()
        end = heard + seconds
        while not enough():
            left = end - time.monotonic()
            if left <= 0:
                return False
            try:
                self._take(self.client.get_iopub_msg(timeout=min(left, 0.1)))
                heard = time.monotonic()
            except queue.Empty:
                if time.monotonic() > heard + SILENCE_S:
                    self._nudge()
                    heard = time.monotonic()
        return True

    def _nudge(self) -> None:
        """Connect once more. ipykernel 7.0 to 7.3 overlook a request that comes while they answer another (ipykernel#1554):
        it lies there until another connection is made, as JupyterLab's are."""
        other = BlockingKernelClient()
        other.load_connection_info(self.client.get_connection_info())
        other.start_channels(iopub=False, stdin=False, hb=False, control=False)
        other.kernel_info()
        with contextlib.suppress(queue.Empty):
            other.get_shell_msg(timeout=1)
        other.stop_channels()

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            self._done.add(message["parent_header"].get("msg_id", ""))
        elif kind == "error":
            self._errors.append(f"{content['ename']}: {content['evalue']}")
        elif kind == "comm_open":
            state = content["data"].get("state", {})
            self._lab = content["comm_id"] if "control_id" in state else self._lab
            self._control = content["comm_id"] if "answered_off_main" in state else self._control
        elif kind == "comm_msg" and content["comm_id"] == self._control and content["data"]["method"] == "update":
            self.live = self.live or bool(content["data"]["state"].get("answered_off_main"))
            self.hellos_answered = content["data"]["state"].get("hellos", self.hellos_answered)
        elif kind == "comm_msg" and content["comm_id"] == self._lab and content["data"]["method"] == "custom":
            self._take_custom(content["data"]["content"], message["buffers"])

    def _take_custom(self, message: dict[str, Any], buffers: list[memoryview]) -> None:
        if message["kind"] == "status":
            self.status = message
        elif message["kind"] in ("batch", "keyframe"):
            for record in map(decoder.decode, _unpacked(bytes(buffers[0]))):
                if isinstance(record, Header):
                    self.view = EngineView(record)
                elif self.view is not None:
                    self.view.apply(record)
            self.send({"kind": "ack", "seq": message["seq"]})


def _unpacked(buffer: bytes) -> list[bytes]:
    records, at = [], 0
    while at < len(buffer):
        (size,) = struct.unpack_from("<I", buffer, at)
        records.append(buffer[at + 4 : at + 4 + size])
        at += 4 + size
    return records
