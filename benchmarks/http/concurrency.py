"""A daemon's throughput and latency by how many requests come at once."""

import time
from collections.abc import Sequence
from statistics import median

from benchmarks.http import wrk
from benchmarks.http.overload import embedder_on_one_core
from benchmarks.report import Figure

_AT_ONCE = tuple(1 << power for power in range(8))
_ROUNDS, _SECONDS, _WARM_UP_SECONDS, _PAUSE_SECONDS = 3, 8, 4, 2
_TEXT = "The gate opens, water falls, and the turbine turns; the river goes on below it. " * 3
_BODY = {"input": _TEXT}


def measure() -> list[Figure]:
    """The daemon on one core, wrk on another; each round goes through all numbers of requests."""
    with embedder_on_one_core() as daemon:
        url = f"{daemon.url}/v1/embeddings"
        wrk.post(url, _BODY, connections=_AT_ONCE[-1], seconds=_WARM_UP_SECONDS)
        rounds = [[_load(url, at_once) for at_once in _AT_ONCE] for _ in range(_ROUNDS)]
    loads = zip(_AT_ONCE, zip(*rounds, strict=True), strict=True)
    return [figure for at_once, runs in loads for figure in _figures(at_once, runs)]


def _load(url: str, at_once: int) -> wrk.Load:
    time.sleep(_PAUSE_SECONDS)  # what the last load has left is over
    return wrk.post(url, _BODY, connections=at_once, seconds=_SECONDS)


def _figures(at_once: int, runs: Sequence[wrk.Load]) -> list[Figure]:
    kinds = {
        ("requests", "requests/s"): [run.per_second for run in runs],
        ("latency, median", "ms"): [run.median_us / 1e3 for run in runs],
        ("latency, p99", "ms"): [run.p99_us / 1e3 for run in runs],
    }
    return [
        Figure(f"{at_once} at once: {name}", median(values), unit, note=_listed(values))
        for (name, unit), values in kinds.items()
    ]


def _listed(values: list[float]) -> str:
    return "median of " + ", ".join(f"{value:.3g}" for value in values)
