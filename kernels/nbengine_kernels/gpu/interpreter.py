"""Whether Triton interprets kernels on the CPU."""

import triton


def interpreted() -> bool:
    """True under TRITON_INTERPRET=1. The interpreter multiplies bfloat16 by its bits, so matrices are widened for it."""
    return bool(triton.knobs.runtime.interpret)
