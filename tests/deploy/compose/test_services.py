"""deploy/compose.yaml as Compose reads it, held against the settings and the files here."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from server.settings.settings import Settings
from tests.deploy.compose.compose_file import FOLDER, PROFILES, composed, daemon, mounts
from tests.project.source_tree import REPOSITORY

CLOSING_S = 10
"""Beyond the drain, for the processes to end."""

each_profile = pytest.mark.parametrize("profile", PROFILES)


@each_profile
def test_one_daemon_with_prometheus_and_grafana(profile: str) -> None:
    assert set(composed(profile)["services"]) == {PROFILES[profile], "prometheus", "grafana"}


@each_profile
def test_what_is_mounted_exists(profile: str) -> None:
    file = composed(profile)
    for service in file["services"].values():
        for source, mode in mounts(service).values():
            if source.startswith("/"):
                assert Path(source).exists()
                assert mode == "ro"
            else:
                assert source in file["volumes"]


@each_profile
def test_services_are_restricted_and_on_loopback(profile: str) -> None:
    for service in composed(profile)["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert int(service["user"].split(":")[0]) > 0
        assert service["tmpfs"] == ["/tmp"]
        (port,) = service["ports"]
        assert port.startswith("127.0.0.1:")


@each_profile
def test_daemon_listens_where_ports_lead(profile: str) -> None:
    service = daemon(profile)
    source, _ = mounts(service)["/etc/penstock"]
    settings = yaml.safe_load((Path(source) / "penstock.yaml").read_text())
    assert service["command"][1:] == ["--config", "/etc/penstock/penstock.yaml"]
    assert settings["host"] == "0.0.0.0"
    assert service["ports"] == [f"127.0.0.1:{settings['port']}:{settings['port']}/tcp"]
    assert settings["drain_timeout"] == Settings().drain_timeout


@each_profile
def test_daemon_has_time_to_drain(profile: str) -> None:
    grace = re.fullmatch(r"(\d+)s", daemon(profile)["stop_grace_period"])
    assert grace is not None
    assert int(grace[1]) >= Settings().drain_timeout + CLOSING_S


def test_gpus_are_a_profile() -> None:
    assert "deploy" not in daemon("cpu")
    (devices,) = daemon("gpu")["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_tags_are_those_of_this_version() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    values = yaml.safe_load((FOLDER / "helm" / "penstock" / "values.yaml").read_text())
    repository = values["image"]["repository"]
    assert daemon("cpu")["image"] == f"{repository}:{version}"
    assert daemon("gpu")["image"] == f"{repository}:{version}-cuda"
