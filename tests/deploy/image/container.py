"""A container of the image, in the host's network, restricted as far as the image allows."""

import time
from typing import Self

import httpx

from tests.deploy.podman import Podman
from tests.e2e.daemon import free_port

RESTRICTED = (
    "--read-only",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:mode=1777",
    "--tmpfs=/home/penstock:mode=1777",
)


class Container:
    """Serves the demo models at `url`, at an address of loopback."""

    def __init__(self, podman: Podman, image: str, *options: str) -> None:
        self._podman, self._image, self._options = podman, image, options
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._arguments = ("serve", "--host", "127.0.0.1", "--port", str(port))

    def __enter__(self) -> Self:
        health = f"PENSTOCK_HEALTH_URL={self.url}/health/ready"
        command = ("run", "--detach", "--network=host", "--env", health, *self._options)
        self.id = self._podman.run(*command, self._image, *self._arguments).strip()
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        print(self.log())  # pytest shows it where a test fails
        self._podman.run("rm", "--force", "--time", "5", self.id)

    def execute(self, *command: str) -> str:
        """The output of a command inside that must succeed."""
        return self._podman.run("exec", self.id, *command)

    def engines(self) -> list[int]:
        """Process ids of the engine cores, seen from the host."""
        table = self._podman.run("top", self.id, "hpid", "args").splitlines()[1:]
        return [int(line.split()[0]) for line in table if "engine_core" in line.split()]

    def exit_code(self, within_s: float) -> int:
        """Waits for its end. Raises subprocess.TimeoutExpired."""
        return int(self._podman.run("wait", self.id, timeout_s=within_s))

    def log(self) -> str:
        done = self._podman.ask("logs", self.id)
        return done.stdout + done.stderr

    def _wait_ready(self, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not self._is_ready():
            running = self._podman.inspect(self.id)["State"]["Running"]
            assert running, f"ended: {self.log()}"
            assert time.monotonic() < deadline, f"not ready: {self.log()}"
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready").status_code == 200
        except httpx.TransportError:
            return False
