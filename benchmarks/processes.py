"""Modules of this package as child processes. All end by pid."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from server.bench.processes import killed_at_the_end

REPOSITORY = Path(__file__).parent.parent


@contextmanager
def running_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] = os.environ,
    piped: bool = False,
) -> Generator[subprocess.Popen[str]]:
    """`python -m MODULE ARGUMENTS`; `piped`, its standard output is one to read.

    Its standard input is a pipe that closes with us (`workers.contract.supervision`).
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if piped else None,
        text=True,
    )
    with killed_at_the_end(process):
        yield process
