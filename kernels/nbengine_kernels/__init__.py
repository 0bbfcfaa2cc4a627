"""The numeric kernels of the engine, the same functions in three dialects.

`reference` is plain torch and the specification; `cpu` is numba; `gpu` is Triton. `kernels_for(device, dtype)` picks
one. Importing this package imports neither numba nor Triton: a dialect is loaded when it is asked for.
"""

from nbengine_kernels.decoder import DecoderLayer, DecoderSizes, LinearOperator
from nbengine_kernels.dispatch import DIALECTS, Kernels, available_dialects, kernels_for
from nbengine_kernels.rotary_table import build_rotary_table, rotary_frequencies

__all__ = [
    "DIALECTS",
    "DecoderLayer",
    "DecoderSizes",
    "Kernels",
    "LinearOperator",
    "available_dialects",
    "build_rotary_table",
    "kernels_for",
    "rotary_frequencies",
]
