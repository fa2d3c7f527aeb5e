"""Processes of this package: started by module name, ended by pid however the block ends."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from benchmarks.machine import REPOSITORY


@contextmanager
def running_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] = os.environ,
    piped: bool = False,
    inherited_fd: int | None = None,
) -> Generator[subprocess.Popen[str]]:
    """`python -m MODULE ARGUMENTS`, from the repository's root.

    Its standard input is a pipe that closes with us, for `workers.parent.exit_with_parent`;
    `piped`, its standard output is one as well.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if piped else None,
        pass_fds=() if inherited_fd is None else (inherited_fd,),
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
