"""The examples of docs/python.md run as they are."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


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
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    for words in says:
        assert words in run.stdout
