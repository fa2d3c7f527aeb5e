"""The clients that people have, in environments of their own, against a daemon that wants a key."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import KEY

REPOSITORY = Path(__file__).parents[3]
CLIENTS = REPOSITORY / "tests" / "clients"
ENVIRONMENTS = {
    ".venv-clients": "requirements.txt",
    ".venv-clients-newest": "requirements-newest.txt",
}


def releases(requirements: str) -> dict[str, str]:
    """The clients that a file lists before what they need, with their releases."""
    clients = (CLIENTS / requirements).read_text().partition("\n\n")[0]
    return dict(re.findall(r"^([\w-]+)==(\S+)$", clients, re.MULTILINE))


def script_of(client: str) -> Path:
    return CLIENTS / f"use_{client.replace('-', '_')}.py"


RUNS = [
    (environment, client)
    for environment, requirements in ENVIRONMENTS.items()
    for client in releases(requirements)
    if script_of(client).exists()
]


@pytest.mark.parametrize(
    ("environment", "client"),
    [
        pytest.param(*run, marks=[] if run[1] == "openai" else [pytest.mark.long], id=" ".join(run))
        for run in RUNS
    ],
)
def test_client(environment: str, client: str, full_daemon: Daemon) -> None:
    """A client's script is a suite of its own."""
    python = REPOSITORY / environment / "bin" / "python"
    assert python.exists(), f"no {python}: `make test` sets it up"
    asked = [str(python), "-m", "pytest", "-q", "-c", str(CLIENTS / "pytest.ini")]
    where = ["--confcutdir", str(CLIENTS), "--url", full_daemon.url, "--key", KEY]
    # schemathesis brings plugins, whose import takes seconds.
    variables = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        [*asked, *where, str(script_of(client))],
        check=False, cwd=CLIENTS, env=variables, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout


def test_every_script_is_run() -> None:
    assert {script_of(client) for _, client in RUNS} == set(CLIENTS.glob("use_*.py"))


def test_the_documentation_names_the_releases() -> None:
    """docs/clients.md has a row for every client, with its release in each environment."""
    table = (REPOSITORY / "docs" / "clients.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\S+) \| (\S+) \| ", table, re.MULTILINE)
    listed = [releases(requirements) for requirements in ENVIRONMENTS.values()]
    clients = {name for each in listed for name in each}
    assert {name: shown for name, *shown in rows} == {
        name: [each.get(name, "—") for each in listed] for name in clients
    }
