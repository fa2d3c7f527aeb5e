"""A daemon with two API processes, loaded and scraped as the chart's ServiceMonitor says."""

from collections.abc import Generator

import pytest

from tests.deploy.helm import Helm3, Manifest
from tests.deploy.monitoring.alert_scenarios import NAMESPACE, RELEASE
from tests.deploy.monitoring.expressions import of_kind
from tests.deploy.monitoring.load import load, refused_while_loading
from tests.deploy.monitoring.prometheus import Prometheus, running_prometheus
from tests.deploy.monitoring.scrape_job import scrape_job
from tests.e2e.daemon import Daemon, free_port
from tests.patience import wait_until

EVERYTHING = {
    "autoscaling": {
        "keda": {"enabled": True, "prometheus": {"serverAddress": "http://prometheus:9090"}}
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}


@pytest.fixture(scope="session")
def manifests(helm3: Helm3) -> list[Manifest]:
    """The chart with all of monitoring and KEDA."""
    return helm3.template(EVERYTHING, release=RELEASE, namespace=NAMESPACE)


@pytest.fixture(scope="session")
def scraped_daemon() -> Generator[Daemon]:
    """A daemon that refuses more than a few requests at a time, and has been asked too early."""
    port = free_port()
    limits = ("--api-workers", "2", "--max-sequences", "8", "--threads", "1")
    daemon = Daemon("--port", str(port), *limits)
    try:
        refused_while_loading(f"http://127.0.0.1:{port}")
        yield daemon.wait_ready()
    finally:
        daemon.end()


@pytest.fixture(scope="session")
def prometheus(
    scraped_daemon: Daemon,
    manifests: list[Manifest],
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[Prometheus]:
    """It has scraped the daemon before, between and after two loads."""
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    job = scrape_job(monitor, scraped_daemon.url.removeprefix("http://"))
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), [job]) as server:
        _scraped(server)
        for _ in range(2):
            load(scraped_daemon.url, rounds=2)
            _scraped(server)
        yield server


def _scraped(server: Prometheus) -> None:
    """Wait for the scrape after the next one: it has all that was counted until now."""
    seen = _samples(server)
    wait_until(lambda: _samples(server) >= seen + 3)


def _samples(server: Prometheus) -> float:
    """How often the daemon has been scraped successfully."""
    return sum(float(series["value"][1]) for series in server.query("sum_over_time(up[1h])"))
