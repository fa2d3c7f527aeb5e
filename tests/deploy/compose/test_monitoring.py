"""Prometheus and Grafana of deploy/compose.yaml: their files name each other and the daemon.

Prometheus runs here with its file; Grafana does not.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.compose.compose_file import PROFILES, composed, daemon, mounts
from tests.deploy.monitoring.prometheus import running_prometheus
from tests.e2e.daemon import running
from tests.patience import wait_until


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return composed("cpu")["services"]


@pytest.fixture(scope="module")
def prometheus_file(services: dict[str, Any]) -> Path:
    """The file that Prometheus' command names."""
    service = services["prometheus"]
    (name,) = (word[14:] for word in service["command"] if word.startswith("--config.file="))
    return Path(mounts(service)[name][0])


def provisioned(services: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """Entries of the files in one of Grafana's provisioning folders."""
    folder, _ = mounts(services["grafana"])[f"/etc/grafana/provisioning/{what}"]
    files = [yaml.safe_load(file.read_text()) for file in Path(folder).iterdir()]
    key = "providers" if what == "dashboards" else what
    assert all(file["apiVersion"] == 1 for file in files)
    return [entry for file in files for entry in file[key]]


def test_prometheus_accepts_its_file(prometheus_file: Path) -> None:
    command = ["promtool", "check", "config", prometheus_file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("profile", PROFILES)
def test_prometheus_scrapes_the_daemon(prometheus_file: Path, profile: str) -> None:
    job = yaml.safe_load(prometheus_file.read_text())["scrape_configs"][0]
    ((target,),) = (config["targets"] for config in job["static_configs"])
    host, _, port = target.partition(":")
    service = daemon(profile)
    assert host in service["networks"]["default"]["aliases"]
    assert service["ports"][0].endswith(f":{port}/tcp")


def test_the_dashboard_has_its_data(prometheus_file: Path, tmp_path: Path) -> None:
    """A real Prometheus with that job, which has this daemon's address in place of the target's."""
    job = yaml.safe_load(prometheus_file.read_text())["scrape_configs"][0]
    with running() as daemon:
        job["static_configs"][0]["targets"] = [daemon.url.removeprefix("http://")]
        with running_prometheus(tmp_path, [job]) as prometheus:
            # What the variables `namespace` and `model` of the dashboard ask for.
            wait_until(lambda: len(prometheus.query('penstock_engine_up{namespace!=""}')) == 2)


def test_grafana_asks_prometheus(services: dict[str, Any], prometheus_file: Path) -> None:
    """Of the type that the dashboard's variable wants, and by default."""
    (source,) = provisioned(services, "datasources")
    ((_, port, _),) = (each.split(":") for each in services["prometheus"]["ports"])
    assert source["url"] == f"http://prometheus:{port}"
    assert source["isDefault"] is True
    interval = yaml.safe_load(prometheus_file.read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
    (wanted,) = (
        each["query"]
        for each in dashboard(services)["templating"]["list"]
        if each["type"] == "datasource"
    )
    assert source["type"] == wanted == "prometheus"


def dashboard(services: dict[str, Any]) -> dict[str, Any]:
    """The one board below the path of Grafana's provider; the start page, too."""
    (provider,) = provisioned(services, "dashboards")
    path = provider["options"]["path"]
    folder, _ = mounts(services["grafana"])[path]
    (board,) = Path(folder).iterdir()
    environment = services["grafana"]["environment"]
    assert environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{path}/{board.name}"
    return json.loads(board.read_text())


def test_grafana_shows_the_dashboard_of_the_chart(services: dict[str, Any]) -> None:
    board = dashboard(services)
    assert board["title"] == "Penstock"
    sources = {panel["datasource"]["uid"] for panel in board["panels"] if "datasource" in panel}
    assert sources == {"${datasource}"}
