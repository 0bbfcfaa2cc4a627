"""Memory for what stays long, weights and the KV cache, and what loading it leaves behind."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading

import torch
from torch import Tensor

_CHUNK = 64 << 20  # bytes of a mapping that small tensors share
_LINE = 64
_lock = threading.Lock()
_chunk: tuple[mmap.mmap, int] | None = None  # the last one, and how much of it is taken


def own_pages(shape: tuple[int, ...], dtype: torch.dtype, *, share: bool = False) -> Tensor:
    """Zeros in pages of their own, large ones where the system has them, that it hands out when they are first written.

    Among what the allocator gives and takes back, they would keep it from giving pages back to the system. share: with
    others that live as long, the matrices of a model, since a large page (2 MiB) must lie in one mapping; those pages go
    when the last of the tensors goes.
    """
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    if count == 0 or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(shape, dtype=dtype)
    memory, offset = _part_of_chunk(nbytes) if share and 2 * nbytes <= _CHUNK else (_mapped(nbytes), 0)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


def _part_of_chunk(nbytes: int) -> tuple[mmap.mmap, int]:
    """A mapping, and from where on `nbytes` of it are the caller's."""
    global _chunk
    with _lock:
        memory, taken = _chunk if _chunk is not None and _chunk[1] + nbytes <= _CHUNK else (_mapped(_CHUNK), 0)
        _chunk = memory, -(-(taken + nbytes) // _LINE) * _LINE
    return memory, taken


def _mapped(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def give_back_heap() -> None:
    """Ask glibc to hand free heap pages back to the system; elsewhere do nothing."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return
