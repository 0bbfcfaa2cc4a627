"""Memory for what stays long, weights and the KV cache, and what loading it leaves behind."""

from __future__ import annotations

import ctypes
import math
import mmap

import torch
from torch import Tensor


def own_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in pages of their own, large ones where the system has them, that it hands out when they are first written.

    Among what the allocator gives and takes back, they would keep it from giving pages back to the system.
    """
    count = math.prod(shape)
    if count == 0 or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


def give_back_heap() -> None:
    """Ask glibc to hand free heap pages back to the system; elsewhere do nothing."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return
