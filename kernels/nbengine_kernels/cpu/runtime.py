"""What all CPU kernels share: the processor's abilities, tags, threads."""

import threading
from typing import Any

import numba
import numpy as np
import torch
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
