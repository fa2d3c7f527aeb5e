"""Frameworks for agents, in environments of their own: each runs a loop with a tool.

A scripted model calls the tool and answers from its result, so that a framework's part and the
daemon's are real, and the answer is known.
"""

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.agents.scripts import SCRIPTS
from tests.e2e.daemon import Daemon, running
from tests.e2e.full_daemon import HEADERS, KEY, guarded_arguments
from tests.e2e.scripted_model import write_scripted_model
from tests.e2e.users.client_suites import REPOSITORY, ClientSuites, Run
from tests.patience import PATIENCE

AGENTS = ClientSuites(
    "agents",
    {".venv-agents": "requirements.txt", ".venv-agents-openai-2": "requirements-openai-2.txt"},
    "test-agents",
)


@pytest.fixture(scope="module")
def scripted_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = write_scripted_model(tmp_path_factory.mktemp("scripted"), SCRIPTS)
    state = ("--state-dir", str(tmp_path_factory.mktemp("state")))
    with running(*guarded_arguments({"scripted,gpt-4o": folder}), *state) as daemon:
        yield daemon


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_script_is_recited(script: str, temperature: float, scripted_daemon: Daemon) -> None:
    for number, turn in enumerate(SCRIPTS[script], 1):
        body = {"prompt": f"<|{script} {number}|>", "temperature": temperature, "max_tokens": 500}
        asked = {"json": body, "headers": HEADERS, "timeout": PATIENCE}
        answer = httpx.post(f"{scripted_daemon.url}/v1/completions", **asked)
        assert answer.json()["choices"][0]["text"] == turn


@pytest.mark.parametrize("run", AGENTS.cases(pytest.mark.agents))
def test_agent(run: Run, scripted_daemon: Daemon) -> None:
    AGENTS.check(run, scripted_daemon.url, KEY)


def test_every_script_is_run() -> None:
    assert not AGENTS.unused()


def test_the_documentation_names_the_releases() -> None:
    """docs/agents.md has a row for every script, with the release of its framework."""
    table = (REPOSITORY / "docs" / "agents.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \| ", table, re.MULTILINE)
    assert dict(rows) == {
        run.client: AGENTS.releases[run.environment][run.client] for run in AGENTS.runs
    }
