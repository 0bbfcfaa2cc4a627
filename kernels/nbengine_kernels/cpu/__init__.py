"""The kernels for CPUs: numba, compiled at first use and kept on disk (see `nbengine_kernels.cache`).

Without numba every name here is the reference's, with one warning.
"""

import importlib.util
import warnings
from pathlib import Path

from nbengine_kernels.cache import numba_cache_dir, numba_caches_in
from nbengine_kernels.rotary_table import build_rotary_table

if importlib.util.find_spec("numba") is None:
    warnings.warn(
        "The cpu kernels need numba, which is not installed: the slower reference kernels serve.",
        RuntimeWarning,
        stacklevel=2,
    )
    from nbengine_kernels.reference import (
        PackedLinear,
        apply_grammar_bitmask,
        fuse_decoder,
        gelu_and_mul,
        likeliest,
        paged_attention,
        rms_norm,
        rotary_embedding,
        rotary_write_kv,
        sample_filter,
        silu_and_mul,
        top_k_top_p_min_p,
        write_kv,
    )
else:
    from numba import config

    with numba_caches_in(numba_cache_dir(Path(__file__).parent), config):
        from nbengine_kernels.cpu.activation import gelu_and_mul, silu_and_mul
        from nbengine_kernels.cpu.attention import paged_attention
        from nbengine_kernels.cpu.linear import PackedLinear  # type: ignore[assignment]
        from nbengine_kernels.cpu.norm import rms_norm  # type: ignore[no-redef]
        from nbengine_kernels.cpu.rotary import rotary_embedding, rotary_write_kv, write_kv
        from nbengine_kernels.cpu.sampling import apply_grammar_bitmask, likeliest, sample_filter, top_k_top_p_min_p
        from nbengine_kernels.cpu.stack import fuse_decoder

__all__ = [
    "PackedLinear",
    "apply_grammar_bitmask",
    "build_rotary_table",
    "fuse_decoder",
    "gelu_and_mul",
    "likeliest",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "rotary_write_kv",
    "sample_filter",
    "silu_and_mul",
    "top_k_top_p_min_p",
    "write_kv",
]
