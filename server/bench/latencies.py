"""Times as figures."""

import numpy as np
import numpy.typing as npt

from server.bench.cases import Figures


def milliseconds(name: str, seconds: npt.ArrayLike) -> Figures:
    """Mean, median and 99th percentile of `seconds`, in ms, as NAME_mean_ms and so on.

    Nothing where there is no time.
    """
    times = np.asarray(seconds) * 1e3
    if not times.size:
        return {}
    median, high = np.percentile(times, [50, 99]).tolist()
    return {
        f"{name}_mean_ms": float(times.mean()),
        f"{name}_p50_ms": median,
        f"{name}_p99_ms": high,
    }
