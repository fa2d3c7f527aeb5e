"""A container that podman runs, asked from outside."""

import subprocess

from tests.deploy.podman import Podman


class RunningContainer:
    """The container that podman knows as `container`."""

    def __init__(self, podman: Podman, container: str) -> None:
        self._podman, self._container = podman, container

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, which may fail."""
        return self._podman.ask("exec", self._container, *command)

    def execute(self, *command: str) -> str:
        """The output of a command inside that must succeed."""
        return self._podman.run("exec", self._container, *command)

    def status(self) -> dict[str, str]:
        """Of its first process, as /proc tells it: who it is, and what it may do."""
        lines = self.execute("cat", "/proc/1/status").splitlines()
        return dict(line.split(":\t", 1) for line in lines)

    def processes(self, *words: str) -> list[int]:
        """Ids, seen from the host, of its processes whose command line has these words."""
        table = self._podman.run("top", self._container, "hpid", "args").splitlines()[1:]
        rows = [line.split() for line in table]
        # One that has just ended has no id ("?").
        return [int(row[0]) for row in rows if row[0] != "?" and all(word in row for word in words)]

    def signal(self, name: str) -> None:
        """To its first process."""
        self._podman.run("kill", "--signal", name, self._container)

    def exit_code(self, within_s: float) -> int:
        """Waits for its end. Raises subprocess.TimeoutExpired."""
        return int(self._podman.run("wait", self._container, timeout_s=within_s))

    def log(self) -> str:
        """All that it has written."""
        done = self._podman.ask("logs", self._container)
        return done.stdout + done.stderr
