"""A real Prometheus in a test: on loopback, with its data in a temporary folder, ended by pid."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.daemon import free_port
from tests.patience import PATIENCE, wait_until

SCRAPE_SECONDS = 1


class Prometheus:
    """A server that scrapes what its configuration names."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query; its value under `value`. Raises AssertionError with
        Prometheus' own words on an expression that it refuses."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        result = answer["data"]["result"]
        return result if answer["data"]["resultType"] == "vector" else [{"value": result}]

    def value(self, expression: str) -> float:
        """The value of an expression that has one series."""
        (series,) = self.query(expression)
        return float(series["value"][1])

    def targets(self) -> list[dict[str, Any]]:
        """What is scraped, with labels, health and the last error."""
        return httpx.get(f"{self.url}/api/v1/targets").json()["data"]["activeTargets"]


@contextmanager
def running_prometheus(folder: Path, jobs: list[dict[str, Any]]) -> Generator[Prometheus]:
    """A ready Prometheus with these `scrape_configs`."""
    port = free_port()
    config = folder / "prometheus.yml"
    timing = {
        "scrape_interval": f"{SCRAPE_SECONDS}s",
        "scrape_timeout": f"{SCRAPE_SECONDS}s",
        "evaluation_interval": f"{SCRAPE_SECONDS}s",
    }
    config.write_text(yaml.safe_dump({"global": timing, "scrape_configs": jobs}))
    log = folder / "prometheus.log"
    with log.open("w") as written:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: process.poll() is not None or _is_ready(server.url))
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False
