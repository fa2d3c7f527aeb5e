"""Child processes of a measurement."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).parent.parent


@contextmanager
def running_command(
    command: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    pass_fds: Sequence[int] = (),
) -> Generator[subprocess.Popen[str]]:
    """The process of `command`, until the block ends, however it ends.

    Its standard input is a pipe that closes with us (`workers.contract.process`).
    """
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    """Standard input and output of a process that has both as pipes."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


@contextmanager
def running_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] = os.environ,
    piped: bool = False,
) -> Generator[subprocess.Popen[str]]:
    """`python -m MODULE ARGUMENTS`; if `piped`, its standard output is a pipe to read."""
    stdout = subprocess.PIPE if piped else None
    command = [sys.executable, "-m", module, *arguments]
    with running_command(command, environment, stdout=stdout) as process:
        yield process
