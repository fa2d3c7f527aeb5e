"""The units of systemd, held against its own tools and against the daemon's settings."""

import re
import subprocess
from pathlib import Path

import pytest

from server.settings.settings import Settings
from tests.deploy.systemd.unit_file import NAMES, UNITS, SystemRoot, read_unit, seconds
from tests.project.source_tree import REPOSITORY

GREATEST_EXPOSURE = 2.0
CLOSING_S = 10
"""Beyond the drain, for the processes to end."""

every_unit = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def root(tmp_path: Path) -> SystemRoot:
    return SystemRoot(tmp_path)


@every_unit
def test_systemd_finds_nothing_wrong(root: SystemRoot, name: str) -> None:
    assert root.verify(name) == ""


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("TimeoutStopSecs=1", "Unknown key 'TimeoutStopSecs'"),
        ("ExecStartPre=/opt/penstock/bin/missing", "not executable"),
        ("SystemCallFilter=@services", "Unknown system call group"),
    ],
)
def test_systemd_finds_mistakes(root: SystemRoot, line: str, complaint: str) -> None:
    file = root.units / "penstock.service"
    file.write_text(file.read_text().replace("[Service]", f"[Service]\n{line}"))
    assert complaint in root.verify("penstock")


@every_unit
def test_exposure(name: str) -> None:
    unit = UNITS / f"{name}.service"
    threshold = f"--threshold={GREATEST_EXPOSURE * 10:g}"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", threshold, unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    found = re.search(rf"exposure level for {unit.name}: ([\d.]+)", done.stdout)
    assert found is not None
    assert float(found[1]) <= GREATEST_EXPOSURE


@every_unit
def test_compiled_code_may_run(name: str) -> None:
    """CUDA, Triton and torch's own kernels for CPUs write it to memory."""
    assert "MemoryDenyWriteExecute" not in read_unit(name)


@every_unit
def test_a_drain_is_waited_for(name: str) -> None:
    """Only the daemon gets SIGTERM: engines that got it would end before their requests."""
    unit = read_unit(name)
    (stop,) = unit["TimeoutStopSec"]
    assert seconds(stop) >= Settings().drain_timeout + CLOSING_S
    assert unit["KillMode"] == ["mixed"]


@every_unit
def test_failures_are_restarted(name: str) -> None:
    """Not for ever if it fails at once; any number of times if it failed after a while."""
    unit = read_unit(name)
    assert unit["Restart"] == ["on-failure"]
    (interval,), (burst,), (pause,) = (
        unit[key] for key in ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec")
    )
    assert seconds(pause) * int(burst) < seconds(interval) <= 60 * int(burst)


@every_unit
def test_every_admitted_request_may_have_a_connection(name: str) -> None:
    (files,) = read_unit(name)["LimitNOFILE"]
    assert int(files) >= 2 * Settings().max_sequences


def test_units_differ_by_devices_alone() -> None:
    cpu, cuda = map(read_unit, NAMES)
    different = {key for key in cpu | cuda if cpu.get(key) != cuda.get(key)}
    assert different == {
        "Description", "After", "Wants", "PrivateDevices", "DevicePolicy", "DeviceAllow",
    }  # fmt: skip
    assert cpu["PrivateDevices"] == ["yes"]
    assert "PrivateDevices" not in cuda
    assert cuda["DevicePolicy"] == ["closed"]
    assert cuda["DeviceAllow"] == ["char-nvidia* rw"]


@every_unit
def test_the_account_exists(name: str, tmp_path: Path) -> None:
    """By systemd-sysusers, in a system that has no users yet."""
    (tmp_path / "etc").mkdir()
    text = (UNITS / "penstock.conf").read_text()
    command = ["systemd-sysusers", f"--root={tmp_path}", "-"]
    subprocess.run(command, input=text, text=True, timeout=60, check=True)
    unit = read_unit(name)
    users = dict(line.split(":", 1) for line in (tmp_path / "etc/passwd").read_text().splitlines())
    groups = (tmp_path / "etc/group").read_text()
    assert users[unit["User"][0]].endswith("/var/cache/penstock:/usr/sbin/nologin")
    assert f"{unit['Group'][0]}:" in groups


def test_documented_drop_ins_are_valid(root: SystemRoot) -> None:
    docs = (REPOSITORY / "docs" / "one-host.md").read_text()
    drop_ins = re.findall(r"```ini\n(.*?)```", docs, re.DOTALL)
    assert len(drop_ins) >= 2
    (root.units / "penstock.service.d").mkdir()
    for number, text in enumerate(drop_ins):
        (root.units / "penstock.service.d" / f"{number}.conf").write_text(text)
    assert root.verify("penstock") == ""
