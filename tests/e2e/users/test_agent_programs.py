"""Claude Code and Codex CLI, headless: each runs a command and answers from what it printed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.scripts import call
from tests.e2e.daemon import Daemon, running
from tests.e2e.full_daemon import KEY, guarded_arguments
from tests.e2e.scripted_model import write_scripted_model
from tests.e2e.users.client_suites import REPOSITORY
from tests.e2e.users.node_programs import MODULES, releases, run

CLAUDE_CODE = MODULES / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
CODEX = MODULES / "@openai" / "codex" / "bin" / "codex.js"
SCRIPTS = {
    "claude-code-task": (
        call("Bash", {"command": "echo $((6 * 7))", "description": "Multiplies"}),
        "The answer is 42.",
    ),
    "codex-task": (call("exec_command", {"cmd": "expr 8 + 9"}, blanks=2), "They make 17."),
}
CODEX_CONFIG = """\
model = "scripted"
model_provider = "penstock"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.penstock]
name = "penstock"
base_url = "{url}/v1"
env_key = "PENSTOCK_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = write_scripted_model(tmp_path_factory.mktemp("scripted"), SCRIPTS)
    with running(*guarded_arguments({"scripted": folder})) as daemon:
        yield daemon


@pytest.mark.agents
def test_claude_code(daemon: Daemon, tmp_path: Path) -> None:
    variables = {
        "ANTHROPIC_BASE_URL": daemon.url,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_MODEL": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_TELEMETRY": "1",
    }
    asked = ("-p", "Please do the claude-code-task.", "--allowedTools", "Bash")
    shown = ("--output-format", "stream-json", "--verbose")
    ended = run(tmp_path, CLAUDE_CODE, *asked, *shown, variables=variables)
    assert ended.code == 0, ended
    (result,) = (
        block["content"]
        for line in ended.lines
        if line["type"] == "user"
        for block in line["message"]["content"]
    )
    assert result == "42"
    assert ended.lines[-1]["result"] == SCRIPTS["claude-code-task"][-1]


@pytest.mark.agents
def test_codex(daemon: Daemon, tmp_path: Path) -> None:
    home = tmp_path / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(CODEX_CONFIG.format(url=daemon.url))
    # Its sandbox needs namespaces, which few containers may make.
    freely = ("--json", "--skip-git-repo-check", "--sandbox", "danger-full-access")
    variables = {"PENSTOCK_API_KEY": KEY}
    ended = run(tmp_path, CODEX, "exec", *freely, "Please do the codex-task.", variables=variables)
    assert ended.code == 0, ended
    items = [line["item"] for line in ended.lines if line["type"] == "item.completed"]
    printed = [item["aggregated_output"] for item in items if item["type"] == "command_execution"]
    said = [item["text"] for item in items if item["type"] == "agent_message"]
    assert (printed, said) == (["17\n"], [SCRIPTS["codex-task"][-1]])


def test_the_documentation_names_the_releases() -> None:
    table = (REPOSITORY / "docs" / "agents.md").read_text()
    rows = dict(re.findall(r"^\| [\w ]+ \(`(@[\w/-]+)`\) \| ([\d.]+) \| ", table, re.MULTILINE))
    assert rows == {name: release for name, release in releases().items() if name[0] == "@"}
