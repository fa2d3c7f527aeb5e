"""How far counts are from what was expected."""

import numpy as np


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic."""
    return float(((counts - expected) ** 2 / expected).sum())
