"""Child processes: the daemon's own parts, and modules of this package. All end by pid."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import REPOSITORY
from server.config import Limits, ServedModel, ServerConfig
from server.processes import Part, daemon_parts

_NO_LISTENER = -1


def daemon_of(
    models: Sequence[ServedModel], directory: Path, listening_fd: int = _NO_LISTENER
) -> list[Part]:
    """The processes that `penstock serve` would start for `models`, one API process among them.

    Their configurations are written into `directory`.
    """
    config = ServerConfig(
        host="127.0.0.1",
        port=0,
        api_workers=1,
        api_key=None,
        drain_timeout=1.0,
        log_level="warning",
        limits=Limits(),
        models=tuple(models),
    )
    return daemon_parts(config, listening_fd, directory)


@contextmanager
def running_part(part: Part) -> Generator[subprocess.Popen[str]]:
    """A part of the daemon."""
    with _running(part.command, part.environment, None, part.inherited_fd) as process:
        yield process


@contextmanager
def running_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] = os.environ,
    piped: bool = False,
) -> Generator[subprocess.Popen[str]]:
    """`python -m MODULE ARGUMENTS`; `piped`, its standard output is one to read."""
    stdout = subprocess.PIPE if piped else None
    command = [sys.executable, "-m", module, *arguments]
    with _running(command, environment, stdout, None) as process:
        yield process


@contextmanager
def _running(
    command: list[str], environment: Mapping[str, str], stdout: int | None, fd: int | None
) -> Generator[subprocess.Popen[str]]:
    """Its standard input is a pipe that closes with us (see `workers.parent.exit_with_parent`)."""
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=stdout,
        pass_fds=() if fd is None else (fd,),
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
