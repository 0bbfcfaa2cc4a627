"""Memory for what stays long, weights and the KV cache, and what loading it leaves behind."""

from __future__ import annotations

import ctypes
import math
import mmap

import torch
from torch import Tensor

_CHUNK = 64 << 20  # bytes that small tensors share: a large page of 2 MiB must lie in one mapping
_LINE = 64
_chunk: tuple[mmap.mmap, int] | None = None  # the last one, and how much of it is taken


def own_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in pages of their own, large ones where the system has them, that it hands out when they are first written.

    Among what the allocator gives and takes back, they would keep it from giving pages back to the system. The pages go when
    the last tensor goes that has a part of them.
    """
    global _chunk
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    if count == 0 or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(shape, dtype=dtype)
    if 2 * nbytes > _CHUNK:
        memory, offset = _mapped(nbytes), 0
    else:
        if _chunk is None or _chunk[1] + nbytes > _CHUNK:
            _chunk = _mapped(_CHUNK), 0
        memory, offset = _chunk
        _chunk = memory, -(-(offset + nbytes) // _LINE) * _LINE
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


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
