"""The page of metrics, by Prometheus' own rules."""

import subprocess

import httpx
import pytest

from tests.deploy.monitoring.prometheus import Prometheus
from tests.e2e.daemon import Daemon


@pytest.mark.usefixtures("prometheus")  # after its load every metric has samples
def test_promtool_finds_no_fault(scraped_daemon: Daemon) -> None:
    page = httpx.get(f"{scraped_daemon.url}/metrics").text
    assert page.count("# TYPE penstock_") > 30
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_scrapes_see_what_all_processes_answered(
    prometheus: Prometheus, scraped_daemon: Daemon
) -> None:
    """Whichever of the two processes was scraped: counters never go back."""
    assert len(scraped_daemon.children()["server.daemon.api_process"]) == 2
    assert prometheus.value("sum(resets(penstock_http_requests_total[1h]))") == 0
    rerank = 'penstock_http_requests_total{endpoint="/v1/rerank", status="200"}'
    assert prometheus.value(f"sum({rerank})") == 4  # two loads of two rounds
