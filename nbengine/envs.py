"""The environment variables that nbengine reads: all of them, here and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Where converted models and compiled kernels are kept: NBENGINE_CACHE, else the user's cache folder."""
    if explicit := os.environ.get("NBENGINE_CACHE"):
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "nbengine"


def log_level() -> str:
    """NBENGINE_LOG_LEVEL: the level of the `nbengine` logger, WARNING when not set."""
    return os.environ.get("NBENGINE_LOG_LEVEL", "WARNING").upper()


def static_output() -> bool:
    """NBENGINE_STATIC=1: show pictures instead of widgets, for notebooks executed into pages."""
    return os.environ.get("NBENGINE_STATIC", "0") == "1"


def kernel_dialect() -> str | None:
    """NBENGINE_KERNELS: force one dialect of the kernels (reference, cpu or gpu)."""
    return os.environ.get("NBENGINE_KERNELS") or None


def hash_seed() -> str | None:
    """PYTHONHASHSEED: vLLM seeds its block hashes with it, so engines that share KV events must agree on it."""
    return os.environ.get("PYTHONHASHSEED") or None


def calm_openmp() -> None:
    """Let the threads of OpenMP spin only briefly while they wait for each other; OMP_WAIT_POLICY overrides it.

    Where threads spin for long, as libgomp lets them, a neighbour on one of the cores makes each of them wait for a time
    slice at every barrier: measured, five to ten times slower. Where they sleep at once, waking them costs more than it
    brings on a quiet machine. Has an effect only before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
