"""Every command that the help and the pages show is understood, with the models it names."""

import io
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest

from server import cli
from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models

ROOT = Path(__file__).parents[3]
HUB_ID = "BAAI/bge-base-en-v1.5"
REVISION = "0" * 40
CONFIG = """\
port: 8443
models:
  - model: ./llama-3.1-8b
    names: [chat]
  - model: BAAI/bge-base-en-v1.5
    names: [embed, rerank]
"""
_MAKE_RUN = re.compile(r'^make run(?: ARGS="(.*)")?$')


def help_of(command: str) -> str:
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        cli.main([command, "--help"])
    return said.getvalue()


def shown(*kinds: str) -> list[str]:
    """The commands of these kinds in the help's examples and the pages' code blocks, each once."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [
        block
        for page in pages
        if page.exists()  # the tests also run beside an installed package, without the pages
        for block in re.findall(r"(?ms)^```\w*\n(.*?)^```$", page.read_text())
    ]
    lines = "\n".join([help_of("serve"), help_of("config"), *blocks]).splitlines()
    commands = {as_penstock(line.split("  #")[0].strip()) for line in lines}
    return sorted(c for c in commands if re.match(rf"penstock ({'|'.join(kinds)})\b(?! \[)", c))


def as_penstock(line: str) -> str:
    """A line as the command of ours that it is, if it is one."""
    if made := _MAKE_RUN.match(line):
        return f"penstock serve {made[1] or ''}".strip()
    return line.removeprefix(".venv/bin/")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the models of the examples are: small ones under great names."""
    demo = demo_models()
    for name in ("llama-3.1-8b", "llama-3.1-70b", "my-llama"):
        (tmp_path / name).symlink_to(demo[GENERATOR_NAME])
    (tmp_path / "bge-m3").symlink_to(demo[EMBEDDER_NAME])
    (tmp_path / "penstock.yaml").write_text(CONFIG)
    (tmp_path / "cluster-secret").write_bytes(bytes(32))
    (tmp_path / "cluster-secret").chmod(0o600)
    cached = tmp_path / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    (cached / "snapshots").mkdir(parents=True)
    (cached / "snapshots" / REVISION).symlink_to(demo[EMBEDDER_NAME])
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(REVISION)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_are_found() -> None:
    found = shown("serve", "config")
    assert len(found) >= 8
    assert "penstock serve" in found
    assert any("--pipeline-stages 2" in command for command in found)


@pytest.mark.parametrize("command", shown("bench"))
def test_a_measurement_that_is_shown_is_one(command: str) -> None:
    """Tested is only that it is understood: it would take minutes, on a GPU."""
    cli._parser(with_bench=True).parse_args(shlex.split(command)[1:])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", shown("serve", "config"))
def test_a_command_that_is_shown_is_understood(command: str) -> None:
    assert "cuda" not in command, "not for this machine"
    _, kind, *arguments = shlex.split(command)
    check = ["--check"] if kind == "serve" else []
    words = [sys.executable, "-P", "-m", "server", "config", *check, *arguments]
    subprocess.run(words, check=True)
