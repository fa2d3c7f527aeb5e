"""The Dockerfile by hadolint, and against what it copies."""

import subprocess

from tests.project.source_tree import REPOSITORY

HADOLINT = REPOSITORY / ".venv-deploy/bin/hadolint"


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [HADOLINT, REPOSITORY / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_not_ignored() -> None:
    lines = (REPOSITORY / "Dockerfile").read_text().splitlines()
    sources = {
        word.partition("/")[0]
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    kept = {
        line[1:]
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert sources == kept
