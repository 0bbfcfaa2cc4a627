"""Recording: a run written to a .nbtrace file while it goes on."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from nbengine.debug.trace import Sparse, without_tensors
from nbengine.debug.trace_file import BATCH_BYTES, TraceWriter
from nbengine.errors import TraceError
from nbengine.observe.recorder import Recorder
from nbengine.observe.records import AnyRecord, Texts, encoder

logger = logging.getLogger(__name__)


class Recording:
    """Writes what `recorder` tells, from the moment at which this is made until `close()` or the end of the process.

    The engine's thread only hands the records over; a thread of the recording's own writes them, each second or as soon as a
    block is full. So a killed process loses at most the last second. A rewind is written as such, and `Trace.open` leaves
    out what it took back.

    To be made while the engine stands: the file begins with its state. tensors: with each step's batch tensors, which are
    most of a file's size. every_s: the longest that a record waits to be written. problem: why nothing more is written, None
    while all is well.
    """

    def __init__(
        self, recorder: Recorder, path: str | os.PathLike[str], *, tensors: bool = False, every_s: float = 1.0
    ) -> None:
        if recorder.log.header is None:
            raise TraceError("There is nothing to record: this recorder watches no engine yet.")
        self.path = Path(path)
        self.problem: str | None = None
        self._tensors = tensors
        self._every_s = every_s
        self._sparse = Sparse()
        self._changed = threading.Condition()
        self._size = 0  # of what came
        self._hurry = False  # somebody waits for what came
        self._closing = False
        self._writer = TraceWriter(self.path, recorder.log.header)
        texts = recorder.log.texts
        known: list[AnyRecord] = [Texts(token_ids=list(texts), texts=list(texts.values()))] if texts else []
        state: list[AnyRecord] = [*known, recorder.view.keyframe()]
        self._came = [(record, encoder.encode(record)) for record in state]
        self._end_listening = recorder.subscribe(self._take)
        self._thread = threading.Thread(target=self._work, name="nbengine-recording", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive() and not self._closing

    def flush(self) -> None:
        """Wait until all that has been recorded is in the file."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._hurry or not self._thread.is_alive())

    def close(self) -> None:
        """Write what is left and end the file; a second call does nothing. Raises TraceError if not all could be written."""
        atexit.unregister(self.close)
        self._end_listening()
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self.problem is not None:
            raise TraceError(f"The recording {self.path} is not whole: {self.problem}.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "not whole: " + self.problem if self.problem else "going on" if self.is_open else "closed"
        return f"recording to {self.path}, {state}"

    # ----------------------------------------------------------------------------------------------- the engine's thread

    def _take(self, record: AnyRecord, data: bytes) -> None:
        with self._changed:
            self._came.append((record, data))
            self._size += len(data)
            if len(self._came) == 1 or self._size >= BATCH_BYTES:
                self._changed.notify_all()

    # ------------------------------------------------------------------------------------------------------ its own thread

    def _work(self) -> None:
        try:
            with self._writer:
                while self._write_what_came():
                    pass
        except OSError as error:  # the disk is full, say: the engine goes on
            self.problem = str(error)
            self._end_listening()
            logger.warning("The recording %s ends early: %s", self.path, error)
        with self._changed:
            self._came, self._hurry = [], False
            self._changed.notify_all()

    def _write_what_came(self) -> bool:
        """Wait for records and write them; False when those were the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._came or self._hurry or self._closing)
            self._changed.wait_for(lambda: self._size >= BATCH_BYTES or self._hurry or self._closing, self._every_s)
            batch, hurry, closing = self._came, self._hurry, self._closing
            self._came, self._size = [], 0
        for record, data in batch:
            if self._sparse.keeps(record, len(data)):
                self._write(record, data)
        self._writer.flush()
        with self._changed:
            self._hurry = self._hurry and not hurry
            self._changed.notify_all()
        return not closing

    def _write(self, record: AnyRecord, data: bytes) -> None:
        lean = record if self._tensors else without_tensors(record)
        self._writer.write_encoded(data if lean is record else encoder.encode(lean))
