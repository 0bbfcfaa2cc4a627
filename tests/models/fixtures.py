"""Fixtures for the tests that run a model: one thread, and one tiny model of each architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.models.tiny import make_tiny_model


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the directory of a tiny random model by architecture, made once."""
    made: dict[str, Path] = {}

    def path_of(arch: str) -> Path:
        if arch not in made:
            made[arch] = make_tiny_model(arch, tmp_path_factory.mktemp(arch))
        return made[arch]

    return path_of
