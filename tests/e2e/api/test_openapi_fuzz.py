"""schemathesis over the daemon's own description: no failures inside, and answers as described."""

import subprocess

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import CLIENTS_PYTHON, HEADERS

# What is valid by the description may still be refused: a model's name, a text too long for it, two
# fields that exclude each other.
_NOT_CHECKED = "positive_data_acceptance"


@pytest.mark.timeout(300)
def test_answers_are_as_described(full_daemon: Daemon, tmp_path) -> None:
    asked = [
        str(CLIENTS_PYTHON.with_name("schemathesis")), "run", f"{full_daemon.url}/openapi.json",
        "--header", f"Authorization: {HEADERS['Authorization']}",
        "--seed", "1", "--max-examples", "2", "--phases", "coverage,fuzzing",
        "--generation-database", "none", "--request-timeout", "30",
        "--exclude-checks", _NOT_CHECKED, "--continue-on-failure", "--no-color",
        "--warnings", "off",
    ]  # fmt: skip
    ended = subprocess.run(asked, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert full_daemon.process.poll() is None
