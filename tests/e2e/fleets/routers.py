"""The routers that are tried in front of several daemons, with the settings of docs/fleets.md."""

from collections.abc import Callable, Sequence

from tests.e2e.full_daemon import CLIENTS_PYTHON

Command = Callable[[Sequence[str], int, int], list[str]]
"""What starts a router, from its workers' URLs, its port and one for its metrics."""

# Both come from one program, so most of their flags are the same.
_SHARED = (
    *("--policy", "cache_aware"),
    # Any difference of requests in flight counts; between equals the prefix does.
    *("--balance-abs-threshold", "0", "--balance-rel-threshold", "1.0"),
    *("--health-check-interval-secs", "1", "--health-failure-threshold", "1"),
    *("--health-success-threshold", "1", "--worker-startup-check-interval", "1"),
    *("--cb-failure-threshold", "1", "--cb-timeout-duration-secs", "5"),
)


def _launched(module: str) -> Command:
    def command(workers: Sequence[str], port: int, metrics: int) -> list[str]:
        return [
            *(str(CLIENTS_PYTHON), "-m", f"{module}.launch_router", "--host", "127.0.0.1"),
            *("--port", str(port), "--prometheus-host", "127.0.0.1"),
            *("--prometheus-port", str(metrics), "--worker-urls", *workers, *_SHARED),
        ]

    return command


ROUTERS: dict[str, Command] = {
    "sglang-router": _launched("sglang_router"),
    "vllm-router": _launched("vllm_router"),
}
