"""PlainView: the moment as text and a table, in one output that is updated: for hosts that show no widgets."""

from __future__ import annotations

import threading
from typing import Any

from IPython.display import display

from nbengine.observe.records import Header, decoder
from nbengine.observe.view import EngineView
from nbengine_widgets.source import LabSource

PERIOD_S = 0.2


class PlainView:
    """One output of a cell, under one display id, however many steps are made. `close()` leaves it as it stands.

    It folds the records itself, as a browser would, so that it can be drawn while the engine moves.
    """

    def __init__(self, source: LabSource) -> None:
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None  # until the update that is due
        first, told = source.keyframe()
        header = decoder.decode(told[0])
        assert isinstance(header, Header)
        self._view = EngineView(header)
        for record in [*told[1:], *(source.records_since(first) or [])]:
            self._view.apply(decoder.decode(record))
        self._handle = display(self._moment(), raw=True, display_id=True)
        self._unsubscribe = source.subscribe(self._take)

    def _moment(self) -> dict[str, Any]:
        return self._view._repr_mimebundle_()

    def _take(self, _number: int, record: bytes) -> None:
        """A record came, in the engine's thread: the output follows within PERIOD_S."""
        with self._lock:
            self._view.apply(decoder.decode(record))
            if self._timer is None:
                self._timer = threading.Timer(PERIOD_S, self._update)
                self._timer.daemon = True
                self._timer.start()

    def _update(self) -> None:
        with self._lock:
            self._timer = None
            moment = self._moment()
        self._handle.update(moment, raw=True)

    def close(self) -> None:
        """Stop updating, with the last moment shown. May be called twice."""
        self._unsubscribe()
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._update()

    def __repr__(self) -> str:
        return "PlainView: see the output above"
