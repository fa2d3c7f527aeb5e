"""wrk, the HTTP client that costs the least."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.report import NotMeasuredError

_SCRIPT = Path(__file__).parent / "post.lua"


class Load(msgspec.Struct, frozen=True):
    """What one run of wrk saw. `failed` counts answers other than 2xx and 3xx, and lost ones."""

    requests: int
    microseconds: int
    failed: int
    median_us: int
    p99_us: int

    @property
    def per_second(self) -> float:
        """Whole answers a second."""
        return self.requests / self.microseconds * 1e6


def post(url: str, body: Mapping[str, object], *, connections: int, seconds: int) -> Load:
    """Ask the same over and over, on each connection as soon as it has its answer.

    Raises NotMeasuredError if wrk is not installed, RuntimeError if a request failed.
    """
    wrk = shutil.which("wrk")
    if wrk is None:
        raise NotMeasuredError("wrk is not installed (on Debian: apt install wrk)")
    load = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s"]
    encoded = msgspec.json.encode(body).decode()
    run = subprocess.run(
        [wrk, *load, "-s", str(_SCRIPT), url, "--", encoded],
        capture_output=True,
        text=True,
        check=True,
    )
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=Load)
    if result.failed:
        raise RuntimeError(f"{result.failed} requests failed:\n{run.stdout}")
    return result
