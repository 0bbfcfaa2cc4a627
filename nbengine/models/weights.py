"""Reading a checkpoint one tensor at a time, straight into the dtype and device that are wanted."""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nbengine.errors import ModelError

_INDEX = "model.safetensors.index.json"


@contextmanager
def open_weights(path: Path, *, device: torch.device, dtype: torch.dtype) -> Iterator[Callable[[str], Tensor]]:
    """A function that gives the checkpoint's tensors by name, on `device` in `dtype`.

    The files are memory-mapped; what is given is a copy, so that a change of a file can't change the model.
    Raises ModelError: no safetensors, a shard or a tensor is missing, a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    with ExitStack() as stack:
        owners: dict[str, Any] = {}
        for file in checkpoint_files(path):
            try:
                handle = stack.enter_context(safe_open(str(file), framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{file} is damaged or cut off: {error}") from error
            owners |= dict.fromkeys(handle.keys(), handle)

        def take(name: str) -> Tensor:
            handle = owners.get(name)
            if handle is None:
                raise ModelError(f"The checkpoint in {path} has no tensor {name!r}.")
            tensor: Tensor = handle.get_tensor(name)
            wanted = tensor.to(device=device, dtype=dtype, copy=True)
            _let_go(tensor)
            return wanted

        yield take


def _let_go(tensor: Tensor) -> None:
    """Give back the memory that a tensor of a mapped file took in this process; nobody may read it any more.

    Otherwise the whole file counts as this process's until it is closed, beside the converted weights.
    """
    if sys.platform == "linux":
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if size > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def checkpoint_files(path: Path) -> list[Path]:
    """The safetensors files of a model directory. Raises ModelError if there are none, or a shard is missing."""
    index = path / _INDEX
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise ModelError(f"{path} lacks {len(missing)} of its {len(names)} weight files, {missing[0]} first.")
        return [path / name for name in names]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path} holds no .safetensors file: only that format is read.")
    single = path / "model.safetensors"
    return [single] if single in files else files
