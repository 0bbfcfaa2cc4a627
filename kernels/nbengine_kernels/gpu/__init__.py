"""The kernels for GPUs, in Triton: CUDA and ROCm. With TRITON_INTERPRET=1 they run, slowly, on CPU tensors."""

from nbengine_kernels.decoder import not_fused as fuse_decoder
from nbengine_kernels.gpu.activation import gelu_and_mul, silu_and_mul
from nbengine_kernels.gpu.attention import paged_attention
from nbengine_kernels.gpu.linear import PackedLinear
from nbengine_kernels.gpu.norm import rms_norm
from nbengine_kernels.gpu.rotary import rotary_embedding, rotary_write_kv, write_kv
from nbengine_kernels.gpu.sampling import apply_grammar_bitmask, sample_filter, top_k_top_p_min_p
from nbengine_kernels.reference.sampling import likeliest
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
