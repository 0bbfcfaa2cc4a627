"""The fixtures of the tests that run a model."""

from tests.models.fixtures import one_thread, tiny_model

__all__ = ["one_thread", "tiny_model"]
