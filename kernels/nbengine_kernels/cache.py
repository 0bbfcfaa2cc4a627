"""Where numba's compiled kernels are kept."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_chosen: list[Path] = []


def set_numba_cache_dir(path: str | Path) -> None:
    """Keep compiled CPU kernels under `path` instead of the user's cache folder.

    To be called before the cpu dialect is first asked for; later calls have no effect on kernels already loaded.
    A NUMBA_CACHE_DIR in the environment wins, as numba documents it.
    """
    _chosen[:] = [Path(path)]


def numba_cache_dir(sources: Path) -> Path:
    """The folder for kernels compiled from the `.py` files in `sources`; made if need be.

    Its name holds a digest of those files: numba looks only at the file that defines a function, and would serve a
    stale kernel when a helper in another file changes.
    """
    digest = hashlib.sha256()
    for file in sorted(sources.glob("*.py")):
        digest.update(file.read_bytes())
    root = _chosen[0] if _chosen else Path.home() / ".cache" / "nbengine" / "numba"
    for base in (root, Path(tempfile.gettempdir()) / "nbengine-numba"):
        folder = base / digest.hexdigest()[:16]
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return Path(tempfile.mkdtemp(prefix="nbengine-numba-"))


@contextlib.contextmanager
def numba_caches_in(folder: Path, config: Any) -> Iterator[None]:
    """While kernels are being defined, point `numba.config` at `folder`; then leave it as it was for other users."""
    before = config.CACHE_DIR
    if not before:
        config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before
