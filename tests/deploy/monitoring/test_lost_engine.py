"""What a real Prometheus sees when a killed engine ends the daemon: the alert that wakes people."""

import os
import signal
from pathlib import Path

from tests.deploy.helm import Manifest
from tests.deploy.monitoring.expressions import alerts, of_kind
from tests.deploy.monitoring.load import EMBEDDER, GENERATOR
from tests.deploy.monitoring.prometheus import Prometheus, running_prometheus
from tests.deploy.monitoring.scrape_job import scrape_job
from tests.e2e.daemon import running
from tests.patience import wait_until


def test_models_are_down_when_a_killed_engine_ended_the_daemon(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    with running("--threads", "1", "--max-restarts", "0") as daemon:
        job = scrape_job(monitor, daemon.url.removeprefix("http://"))
        with running_prometheus(tmp_path, [job]) as server:
            wait_until(lambda: _down(server, manifests) == set())
            os.kill(daemon.part("0.engine"), signal.SIGKILL)
            assert daemon.exit_code() == 1
            # The daemon is gone, and its series with it: one scrape that fails makes them stale.
            wait_until(lambda: _down(server, manifests) == {GENERATOR, EMBEDDER})


def _down(server: Prometheus, manifests: list[Manifest]) -> set[str]:
    """The models whose alert's expression holds."""
    rules = [rule for rule in alerts(manifests) if rule["alert"] == "PenstockModelDown"]
    return {rule["labels"]["model"] for rule in rules if server.query(rule["expr"])}
