"""Fixtures for every folder of tests."""

from tests.models.fixtures import one_thread, tiny_model

__all__ = ["one_thread", "tiny_model"]
