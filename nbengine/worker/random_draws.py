"""Random numbers that depend on nothing but a seed and a position, so the sampler has no state to lose or to share.

Output token i of a request with seed s draws `mix(mix(s + G) + (i + 1) G)`, where G is the golden-ratio constant and
`mix` the finaliser of SplitMix64 (Steele, Lea and Flood 2014): two independent scramblings of a counter. So the draw is
the same alone, in any batch, after preemption and after a rewind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S16 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(16)
_SEED_MASK = (1 << 64) - 1


def seed_bits(seed: int) -> int:
    """Any whole number as the 64 bits that `uniform` takes."""
    return seed & _SEED_MASK


def uniform(seeds: NDArray[np.uint64], indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, index): multiples of 2**-48. Shapes (S,), (S,) -> (S,)."""
    with np.errstate(over="ignore"):
        bits = _mix(_mix(seeds + _GOLDEN) + (indices.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> _S16).astype(np.float64) * 2.0**-48


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> _S30)) * _FIRST
    z = (z ^ (z >> _S27)) * _SECOND
    return z ^ (z >> _S31)
