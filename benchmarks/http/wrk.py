"""wrk, the HTTP client that costs the least."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.report import NotMeasuredError

_FOLDER = Path(__file__).parent
_TIMEOUT_S = 60


class Load(msgspec.Struct, frozen=True):
    """Results of a run of wrk. `failed` counts answers other than 2xx and 3xx, and lost ones."""

    requests: int
    microseconds: int
    failed: int
    median_us: int
    p99_us: int

    @property
    def per_second(self) -> float:
        """Whole answers a second."""
        return self.requests / self.microseconds * 1e6


class Offer(msgspec.Struct, frozen=True):
    """The results of one run of wrk on a server that may answer 429: how many requests it took and
    how many it refused. `failed` counts all other answers, and lost ones."""

    microseconds: int
    taken: int
    taken_max_us: int
    refused: int
    refused_p95_us: int
    failed: int

    @property
    def taken_per_second(self) -> float:
        """Whole answers a second."""
        return self.taken / self.microseconds * 1e6

    @property
    def offered_per_second(self) -> float:
        """Requests a second that were answered either way."""
        return (self.taken + self.refused) / self.microseconds * 1e6


_ResultT = TypeVar("_ResultT", Load, Offer)


def post(url: str, body: Mapping[str, object], *, connections: int, seconds: int) -> Load:
    """Send the same request again and again, on each connection as soon as it has its answer.

    Raises NotMeasuredError if wrk is not installed, RuntimeError if a request failed.
    """
    return _run("post.lua", Load, url, body, connections=connections, seconds=seconds)


def offer(
    url: str,
    body: Mapping[str, object],
    *,
    connections: int,
    seconds: int,
    pause_ms: int,
) -> Offer:
    """Send the same request again and again, on each connection `pause_ms` (on average) after its
    answer.

    Raises as `post` does; a 429 is no failure.
    """
    load = {"connections": connections, "seconds": seconds}
    return _run("offer.lua", Offer, url, body, str(pause_ms), **load)


def _run(
    script: str,
    result_type: type[_ResultT],
    url: str,
    body: Mapping[str, object],
    *arguments: str,
    connections: int,
    seconds: int,
) -> _ResultT:
    wrk = shutil.which("wrk")
    if wrk is None:
        raise NotMeasuredError("wrk is not installed (on Debian: apt install wrk)")
    load = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{_TIMEOUT_S}s"]
    encoded = msgspec.json.encode(body).decode()
    run = subprocess.run(
        [wrk, *load, "-s", str(_FOLDER / script), url, "--", encoded, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=result_type)
    if result.failed:
        raise RuntimeError(f"{result.failed} requests failed:\n{run.stdout}")
    return result
