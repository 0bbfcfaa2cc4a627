"""Elementary functions that LLVM can vectorise: numba would call libm for each element."""

from typing import Any

import numpy as np
from numba import njit

from nbengine_kernels.cpu import ir

LOOSE = {"nnan", "nsz", "arcp", "contract", "reassoc"}
"""Fast-math flags for sums and products. Infinities keep their meaning."""

# error_model="numpy", here and in every kernel: Python's branches to ZeroDivisionError, and no such loop is vectorised.
inline: Any = njit(inline="always", fastmath=LOOSE, error_model="numpy")

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ONE, _HALF, _TWO = np.float32(1.0), np.float32(0.5), np.float32(2.0)
_C2, _C3, _C4 = np.float32(0.5), np.float32(1.6666665e-1), np.float32(4.1665795e-2)
_C5, _C6, _C7 = np.float32(8.3334519e-3), np.float32(1.3981999e-3), np.float32(1.9875691e-4)
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)


@inline
def exp(x: Any) -> Any:
    """e**x for float32, within 2e-7 relative; x is held within [-87, 88].

    x = n ln 2 + r with |r| <= ln 2 / 2; e**r by a polynomial (the coefficients of Cephes' expf), 2**n by its bits.
    """
    x = min(max(x, _LOWEST), _HIGHEST)
    n = np.floor(x * _LOG2E + _HALF)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2
    return (p * r * r + r + _ONE) * ir.two_to(n)


@inline
def tanh(x: Any) -> Any:
    """tanh for float32, within 2e-7 absolute."""
    return _ONE - _TWO / (exp(_TWO * x) + _ONE)


_P = np.float32(0.3275911)
_A1, _A2, _A3 = np.float32(0.254829592), np.float32(-0.284496736), np.float32(1.421413741)
_A4, _A5 = np.float32(-1.453152027), np.float32(1.061405429)


@inline
def erf(x: Any) -> Any:
    """The error function for float32, within 3e-7 absolute (Abramowitz and Stegun 7.1.26)."""
    size = abs(x)
    t = _ONE / (_ONE + _P * size)
    tail = ((((_A5 * t + _A4) * t + _A3) * t + _A2) * t + _A1) * t * exp(-size * size)
    return _ONE - tail if x >= np.float32(0.0) else tail - _ONE
