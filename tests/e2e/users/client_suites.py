"""Clients' scripts, each a suite of its own, run in the environments that have the client."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[3]


class Run(NamedTuple):
    """A client's script in one environment."""

    environment: str
    client: str
    script: Path


class ClientSuites:
    """The scripts `use_CLIENT.py` of a folder of tests/, and the clients of each environment."""

    def __init__(self, folder: str, environments: Mapping[str, str], target: str) -> None:
        """`environments` have a file of requirements each. `make TARGET` sets them up."""
        self._folder = REPOSITORY / "tests" / folder
        self._target = target
        self.releases = {
            environment: self._releases(requirements)
            for environment, requirements in environments.items()
        }
        """Environment -> clients -> releases."""
        runs = (
            Run(environment, client, self._folder / f"use_{client.replace('-', '_')}.py")
            for environment, clients in self.releases.items()
            for client in clients
        )
        self.runs = [run for run in runs if run.script.exists()]

    def _releases(self, requirements: str) -> dict[str, str]:
        """The clients that a file lists before what they need, with their releases."""
        clients = (self._folder / requirements).read_text().partition("\n\n")[0]
        return dict(re.findall(r"^([\w-]+)==(\S+)$", clients, re.MULTILINE))

    def cases(self, *marks: pytest.MarkDecorator, unmarked: str = "") -> list:
        """The runs as parameters of a test, with these marks but for the client `unmarked`."""
        return [
            pytest.param(
                run,
                marks=[] if run.client == unmarked else marks,
                id=f"{run.environment} {run.client}",
            )
            for run in self.runs
        ]

    def unused(self) -> set[Path]:
        """The scripts that no environment runs."""
        return set(self._folder.glob("use_*.py")) - {run.script for run in self.runs}

    def check(self, run: Run, url: str, key: str) -> None:
        """Run a script against the daemon at `url`. Nothing in it may fail, or be skipped."""
        python = REPOSITORY / run.environment / "bin" / "python"
        assert python.exists(), f"no {python}: `make {self._target}` sets it up"
        asked = [str(python), "-m", "pytest", "-q", "-c", str(self._folder / "pytest.ini")]
        where = {"DAEMON_URL": url, "DAEMON_KEY": key}
        # schemathesis brings plugins, whose import takes seconds.
        variables = os.environ | where | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        ended = subprocess.run(
            [*asked, "--confcutdir", str(self._folder), str(run.script)],
            check=False, cwd=self._folder, env=variables, capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "skipped" not in ended.stdout
