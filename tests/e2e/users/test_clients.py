"""The clients that people have, in their own environment, against a daemon that wants a key."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import CLIENTS_PYTHON, KEY

REPOSITORY = Path(__file__).parents[3]
CLIENTS = REPOSITORY / "tests" / "clients"


def drive(python: Path, script: str, daemon: Daemon) -> None:
    """Run one client's script, a suite of its own."""
    assert python.exists(), f"no {python}: `make test` sets it up"
    asked = [str(python), "-m", "pytest", "-q", "-c", str(CLIENTS / "pytest.ini")]
    where = ["--confcutdir", str(CLIENTS), "--url", daemon.url, "--key", KEY]
    # schemathesis brings plugins, whose import takes seconds.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        [*asked, *where, str(CLIENTS / script)],
        check=False, cwd=CLIENTS, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("script", sorted(file.name for file in CLIENTS.glob("use_*.py")))
def test_client(script: str, full_daemon: Daemon) -> None:
    drive(CLIENTS_PYTHON, script, full_daemon)


@pytest.mark.parametrize(
    "script", [pytest.param("use_cohere.py", marks=pytest.mark.long), "use_openai.py"]
)
def test_newest_release(script: str, full_daemon: Daemon) -> None:
    """Of the clients that other clients hold back, the one that the daemon's tools have."""
    drive(Path(sys.executable), script, full_daemon)


def test_the_documentation_names_the_releases() -> None:
    """docs/clients.md has the version of every client that is driven here."""
    wanted = (CLIENTS / "requirements.txt").read_text().partition("\n\n")[0]
    table = (REPOSITORY / "docs" / "clients.md").read_text()
    for name, version in re.findall(r"^([\w-]+)==(\S+)$", wanted, re.MULTILINE):
        assert f"`{name}` {version}" in table
