"""The random numbers of sampling: a pure function of (seed, index)."""

import numpy as np

from tests.workers.sampling.chi_square import chi_square
from workers.sampling.sampling_table import uniforms


def test_seeds_and_indices_are_both_uniform_and_unrelated() -> None:
    zeros, counting = np.zeros(1 << 14, np.int32), np.arange(1 << 14, dtype=np.int32)
    seeds = counting.astype(np.uint64)
    by_index = uniforms(zeros.astype(np.uint64) + np.uint64(2**63 - 1), counting)
    by_seed = uniforms(seeds, zeros)
    for drawn in (by_index, by_seed):
        assert drawn.min() >= 0
        assert drawn.max() < 1
        counts = np.histogram(drawn, bins=64, range=(0, 1))[0]
        assert chi_square(counts, np.full(64, len(drawn) / 64)) < 103.4  # p = 0.001
    assert abs(np.corrcoef(by_index, by_seed)[0, 1]) < 0.03
    assert abs(np.corrcoef(by_index[1:], by_index[:-1])[0, 1]) < 0.03
    next_seed = uniforms(seeds + np.uint64(1), zeros)
    assert abs(np.corrcoef(by_seed, uniforms(seeds, zeros + np.int32(1)))[0, 1]) < 0.03
    assert not np.isin(uniforms(seeds[:64], zeros[:64] + np.int32(1)), next_seed[:64]).any()
