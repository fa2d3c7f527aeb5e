"""Random numbers for sampling: a pure function of (seed, output index).

They do not depend on the batch, on wasted rows, on recomputation or on the number of stages.
"""

import numpy as np
import numpy.typing as npt

from workers.step.rows import IntArray

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seed: npt.NDArray[np.uint64], index: IntArray) -> npt.NDArray[np.float32]:
    """Number `index` of each row's stream, float32[S] in [0, 1): at most 1 - 2^-24.

    SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), whose
    state is a counter; the seed is mixed first so that neighbouring seeds share no stream.
    """
    counter = (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    bits = _mix(_mix(seed) + counter)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
