"""A word to a person who waits: what takes so long, once it does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 3.0


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


@contextmanager
def said_if_slow(sentence: str) -> Iterator[None]:
    """Write the sentence to stderr if the block is not done after PATIENCE_S seconds."""
    timer = threading.Timer(PATIENCE_S, _say, (sentence,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
