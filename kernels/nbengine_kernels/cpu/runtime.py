"""What all CPU kernels share: the processor's abilities, tags, threads."""

import ctypes
import sys
import threading
from typing import Any

import numba
import numpy as np
import torch
from llvmlite.binding import get_host_cpu_name
from numba.core.codegen import get_host_cpu_features
from torch import Tensor

FLOAT32 = np.float32(0)
BFLOAT16 = np.uint16(0)
_TAGS: dict[torch.dtype, Any] = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}
_local = threading.local()


def _abilities() -> set[str]:
    """What the processor that numba compiles for can do, in LLVM's words ("avx512f")."""
    told = numba.config.CPU_FEATURES  # set in NUMBA_CPU_FEATURES, or by NUMBA_CPU_NAME=generic
    features = get_host_cpu_features() if told is None else told
    return {word[1:] for word in features.split(",") if word.startswith("+")}


AVX512 = "avx512f" in _abilities()
BFLOAT16_PRODUCTS = AVX512 and "avx512bf16" in _abilities()
"""Whether the processor multiplies bfloat16 itself."""

STREAMS_BY = (numba.config.CPU_NAME or get_host_cpu_name()).startswith("znver")
"""Whether lines that are asked for but once (prefetchnta) come as fast as others: AMD's do, Intel's take twice as long."""


def _may_use_tiles() -> bool:
    """Ask Linux for the tile registers of Intel's AMX, which a process has only if it asks (arch_prctl(2))."""
    if not {"amx-tile", "amx-bf16"} <= _abilities() or not sys.platform.startswith("linux"):
        return False
    request_permission, tile_data, arch_prctl = 0x1023, 18, 158
    if ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0:
        return True
    # numba keeps compiled code by what the processor can do: by this it is kept apart from code that has tiles
    numba.config.CPU_FEATURES = ",".join(word for word in get_host_cpu_features().split(",") if "amx" not in word)
    return False


AMX = BFLOAT16_PRODUCTS and _may_use_tiles()
"""Whether the processor multiplies whole tiles of bfloat16."""


def tag_of(tensor: Tensor) -> Any:
    """The scalar whose type tells a kernel how to read `tensor`; None for a dtype that it can't read."""
    return _TAGS.get(tensor.dtype)


def rows_of(tensor: Tensor) -> bool:
    """Whether everything but the first dimension is contiguous."""
    shape, stride = tensor.shape, tensor.stride()
    expected = 1
    for size, step in zip(reversed(shape[1:]), reversed(stride[1:])):
        if step != expected and size != 1:
            return False
        expected *= size
    return True


def threads() -> int:
    """How many threads a kernel may use: torch's number, within what numba has. Sets numba's number to it."""
    wanted = min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS))
    if getattr(_local, "threads", None) != wanted:
        numba.set_num_threads(wanted)
        _local.threads = wanted
    return wanted


_SERIAL_ELEMENTS = 16_384
"""Waking the other threads costs about what one thread needs for so many elements."""


def workers_for(elements: int) -> int:
    """How many threads are worth waking for an elementwise pass over `elements`."""
    return 1 if elements <= _SERIAL_ELEMENTS else threads()
