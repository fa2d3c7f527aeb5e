"""Runs a program of ours to its end: those that import torch or transformers are no part of us."""

import subprocess
import sys

from server.settings.settings import child_environment

_TIMEOUT = 300.0


class ProgramError(Exception):
    """A program has failed, or took too long. One line says why."""


def run_program(module: str, *arguments: str, data: bytes = b"") -> bytes:
    """The standard output of `python -m MODULE ARGUMENTS`, which gets `data` as its input.

    Raises ProgramError, with the last line on its standard error if there is one.
    """
    # -P: a file in the current folder that is called like one of our packages is not imported.
    command = [sys.executable, "-P", "-m", module, *arguments]
    environment = child_environment(settings={"HF_HUB_OFFLINE": "1"})
    try:
        done = subprocess.run(
            command, env=environment, input=data, capture_output=True, timeout=_TIMEOUT, check=True
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(f"it took over {_TIMEOUT:.0f} s") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise ProgramError(lines[-1] if lines else f"status {error.returncode}") from None
    return done.stdout
