"""Fixtures for every folder of tests."""

import signal

from tests.models.fixtures import one_thread, tiny_model

__all__ = ["one_thread", "tiny_model"]

# A shell starts what it runs in the background with interrupts ignored, and Python leaves it so: then none would arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)
