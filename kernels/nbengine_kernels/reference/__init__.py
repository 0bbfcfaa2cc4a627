"""The specification: every kernel in plain torch, on any device. Clear first; the other dialects are compared to it."""

from nbengine_kernels.decoder import not_fused as fuse_decoder
from nbengine_kernels.reference.activation import gelu_and_mul, silu_and_mul
from nbengine_kernels.reference.attention import paged_attention
from nbengine_kernels.reference.cache import write_kv
from nbengine_kernels.reference.linear import PackedLinear
from nbengine_kernels.reference.norm import rms_norm
from nbengine_kernels.reference.rotary import rotary_embedding, rotary_write_kv
from nbengine_kernels.reference.sampling import apply_grammar_bitmask, likeliest, sample_filter, top_k_top_p_min_p
from nbengine_kernels.rotary_table import build_rotary_table

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
