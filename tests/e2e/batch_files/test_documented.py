"""The commands of docs/batch.md and the examples of docs/python.md do what these pages say."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "batch.md"
CONFIG = "models:\n  - model: ./llama-3.1-8b\n    threads: 1\n  - model: ./embedder\n"


def blocks(language: str) -> list[str]:
    """The code blocks of the page."""
    if not PAGE.exists():  # the tests also run beside an installed package, without the pages
        return []
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE.read_text())


FILE, *COMMANDS = blocks("sh") or [""]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the page's file of requests, a `penstock`, and models by the page's names."""
    subprocess.run(["sh", "-c", FILE], check=True, cwd=tmp_path)
    command = tmp_path / "penstock"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m server "$@"\n')
    command.chmod(0o755)
    demo = demo_models()
    (tmp_path / "llama-3.1-8b").symlink_to(demo[GENERATOR_NAME])
    (tmp_path / "embedder").symlink_to(demo[EMBEDDER_NAME])
    (tmp_path / "penstock.yaml").write_text(CONFIG)
    return tmp_path


def test_the_commands_are_found() -> None:
    if PAGE.exists():
        lines = "".join(COMMANDS).splitlines()
        assert len(lines) >= 5
        assert all(line.startswith("penstock batch") for line in lines)


def test_the_way_of_openais_client(here: Path, demo: Daemon) -> None:
    (program,) = blocks("python")
    program = program.replace("http://127.0.0.1:8000", demo.url)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=here, check=False
    )
    assert run.returncode == 0, run.stderr
    answered, failed = [json.loads(line) for line in run.stdout.splitlines() if line]
    assert answered["response"]["body"]["object"] == "text_completion"
    assert failed["response"]["body"]["error"]["param"] == "n"


def is_long(command: str) -> bool:
    """A command of the same engines, or of both models, beside those that are tried always."""
    return not ("--url" in command or "--max-model-len" in command)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.long] * is_long(command))
        for command in "".join(COMMANDS).splitlines()
    ],
)
def test_a_command_that_is_shown_answers(command: str, here: Path, demo: Daemon) -> None:
    own = command.replace("http://127.0.0.1:8000", demo.url)
    run = subprocess.run(
        ["sh", "-c", f"./{own}"], capture_output=True, text=True, cwd=here, check=False, timeout=100
    )
    assert run.returncode == 0, run.stderr
    text, chat, wrong = [
        json.loads(line) for line in (here / "answers.jsonl").read_text().splitlines()
    ]
    assert text["response"]["body"]["object"] == "text_completion"
    assert chat["response"]["body"]["object"] == "chat.completion"
    shown: list[dict[str, Any]] = [json.loads(block) for block in blocks("json")]
    assert shown[0].keys() == text.keys()
    assert shown[0]["response"].keys() == text["response"].keys()
    assert wrong["response"]["status_code"] in (400, shown[1]["response"]["status_code"])
    if "./llama-3.1-8b" not in own:
        theirs = shown[1]["response"]["body"]["error"]
        error = wrong["response"]["body"]["error"]
        assert (error["code"], error["param"]) == (theirs["code"], theirs["param"])
        assert "3 requests (1 failed) in " in run.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("batch_generate", ["What does command number 2 do? ", "40 requests (0 failed)"]),
        pytest.param(
            "batch_embed",
            ["5 requests (0 failed)", "The cat sat on the mat. | A cat was sitting"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "batch_rerank",
            ["What do pandas eat? The giant panda", "down? A penstock leads water"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_example_prints_what_it_promises(name: str, says: list[str]) -> None:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    for words in says:
        assert words in run.stdout
