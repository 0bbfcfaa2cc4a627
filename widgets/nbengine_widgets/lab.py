"""Lab: the widget that shows an engine, or a recording of one. See widgets/src/host/channel.ts for the other end.

Two widget models, because Jupyter routes a message from the browser to the thread that last published on that model:
records go down on `Lab`, and all that comes up (commands, acknowledgements) goes through `LabControl`, on which the kernel
publishes only in answer to a hello. So buttons work while a cell holds the main thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import anywidget
import ipywidgets
import traitlets

from nbengine_widgets.publisher import Publisher
from nbengine_widgets.source import LabSource
from nbengine_widgets.static_page import BundleFile

PANES = ("lab", "queues", "blocks", "timeline", "inspector")
_WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


class LabControl(ipywidgets.Widget):  # type: ignore[misc]
    """The way up: it has no view, and the kernel publishes on it only from within the handler of a hello.

    answered_off_main: a hello was handled in another thread than the main one, so that buttons work during a cell.
    hellos: how many were answered.
    """

    _model_name = traitlets.Unicode("WidgetModel").tag(sync=True)
    _model_module = traitlets.Unicode("@jupyter-widgets/base").tag(sync=True)
    _view_name = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    answered_off_main = traitlets.Bool(False).tag(sync=True)
    hellos = traitlets.Int(0).tag(sync=True)

    def __init__(self, receive: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._receive = receive
        self.on_msg(self._on_message)
        # ipykernel 7.4 counts the opening of a comm as publishing on it, which ties it to this cell's thread until a hello
        # is answered: never, if cells are run one after the other. Forget that: the front end's own choice then holds.
        self.comm.__dict__.pop("_reply_subshell_id", None)

    def _on_message(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("kind") != "hello":
            self._receive(content)
            return
        with self.hold_sync():
            self.answered_off_main = threading.current_thread() is not threading.main_thread()
            self.hellos += 1


class Lab(anywidget.AnyWidget):  # type: ignore[misc]
    """The whole Lab. `queues`, `blocks`, `timeline` and `inspector` are widgets that show one pane of it.

    Synced state is a few hundred bytes; records travel as binary messages.
    """

    _esm = BundleFile("lab.js")
    _css = BundleFile("lab.css")
    pane = traitlets.Enum(PANES, "lab").tag(sync=True)
    capabilities = traitlets.List(traitlets.Unicode()).tag(sync=True)
    control_id = traitlets.Unicode().tag(sync=True)

    _open = False  # until it listens to its source

    def __init__(self, source: LabSource) -> None:
        self.source = source
        self.control = LabControl(self._receive)
        super().__init__(capabilities=source.capabilities(), control_id=self.control.model_id)
        self._lock = threading.Lock()
        self._panes: dict[str, LabPane] = {}
        self.publisher = Publisher(self._send_down, source, first=source.num_records())
        self._unsubscribe = source.subscribe(self.publisher.publish)
        self.on_msg(lambda _widget, content, _buffers: self._receive(content))
        self._open = True

    # ---------------------------------------------------------------------------------------------------------- one pane

    @property
    def queues(self) -> LabPane:
        return self._pane("queues")

    @property
    def blocks(self) -> LabPane:
        return self._pane("blocks")

    @property
    def timeline(self) -> LabPane:
        return self._pane("timeline")

    @property
    def inspector(self) -> LabPane:
        return self._pane("inspector")

    def _pane(self, name: str) -> LabPane:
        if name not in self._panes:
            self._panes[name] = LabPane(self, name)
        return self._panes[name]

    # ----------------------------------------------------------------------------------------------------------- messages

    def status_changed(self) -> None:
        """The source's status() says something new: send it. May be called from any thread."""
        self.publisher.status_changed()

    def _send_down(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        with self._lock:
            self.send(message, buffers)

    def _receive(self, content: dict[str, Any]) -> None:
        """A message of the browser, in whatever thread: nothing here may wait."""
        if not isinstance(content, dict) or self.publisher.handle(content) or content.get("kind") != "command":
            return
        name, args = str(content.get("name")), dict(content.get("args") or {})
        if name == "source":
            self._answer_source(content.get("id"), args)
        elif name in self.capabilities:
            self.source.post({"name": name, "args": args, "id": content.get("id")})
            self.publisher.status_changed()

    def _answer_source(self, request: Any, args: dict[str, Any]) -> None:
        found = self.source.source_lines(str(args.get("file", "")), int(args.get("line", 0)))
        self._send_down({"kind": "source", "id": request, "found": found}, [])

    # ------------------------------------------------------------------------------------------------------------ its end

    def close(self) -> None:
        """Close the widgets and stop listening to the source. May be called twice (ipywidgets does, at the end)."""
        if self._open:
            self._open = False
            self._unsubscribe()
            self.publisher.close()
            for pane in self._panes.values():
                pane.close()
            self.control.close()
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_picture(self.source, super()._repr_mimebundle_(**kwargs))


class LabPane(anywidget.AnyWidget):  # type: ignore[misc]
    """One pane of a Lab as a widget of its own. It carries no bundle: it asks the Lab's model to draw here."""

    _esm = """
async function render({ model, el, host, signal }) {
  const lab = await host.getWidget("anywidget:" + model.get("lab_id"));
  lab.exports.mount(el, model.get("pane"), signal);
}
export default { render };
"""
    lab_id = traitlets.Unicode().tag(sync=True)
    pane = traitlets.Enum(PANES).tag(sync=True)

    def __init__(self, lab: Lab, pane: str) -> None:
        super().__init__(lab_id=lab.model_id, pane=pane)
        self.lab = lab

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_picture(self.lab.source, super()._repr_mimebundle_(**kwargs))


def with_picture(source: LabSource, bundle: Any) -> Any:
    """The widget's MIME bundle with the source's picture beside it; NBENGINE_STATIC=1 leaves the picture only."""
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    picture: dict[str, Any] = {"text/plain": "nbengine Lab"}
    with contextlib.suppress(Exception):  # a picture that fails must not take the widget along
        picture |= source.static_bundle()
    if os.environ.get("NBENGINE_STATIC") == "1":
        return picture, metadata
    return picture | {_WIDGET_MIME: data[_WIDGET_MIME]}, metadata
