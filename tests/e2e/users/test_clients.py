"""The clients that people have, in environments of their own, against a daemon that wants a key."""

import re

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import KEY
from tests.e2e.users.client_suites import REPOSITORY, ClientSuites, Run

CLIENTS = ClientSuites(
    "clients",
    {".venv-clients": "requirements.txt", ".venv-clients-newest": "requirements-newest.txt"},
    "test",
)


@pytest.mark.parametrize("run", CLIENTS.cases(pytest.mark.long, unmarked="openai"))
def test_client(run: Run, full_daemon: Daemon) -> None:
    CLIENTS.check(run, full_daemon.url, KEY)


def test_every_script_is_run() -> None:
    assert not CLIENTS.unused()


def test_the_documentation_names_the_releases() -> None:
    """docs/clients.md has a row for every client, with its release in each environment."""
    table = (REPOSITORY / "docs" / "clients.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\S+) \| (\S+) \| ", table, re.MULTILINE)
    listed = CLIENTS.releases.values()
    clients = {name for each in listed for name in each}
    assert {name: shown for name, *shown in rows} == {
        name: [each.get(name, "—") for each in listed] for name in clients
    }
