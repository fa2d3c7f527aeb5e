"""A container of the image, in the host's network, restricted as far as the image allows."""

from typing import Self

import httpx

from tests.deploy.podman import Podman
from tests.deploy.running_container import RunningContainer
from tests.e2e.daemon import free_port
from tests.patience import wait_until

RESTRICTED = (
    "--read-only",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:mode=1777",
    "--tmpfs=/home/penstock:mode=1777",
)


class Container(RunningContainer):
    """Serves the demo models at `url`, at an address of loopback."""

    def __init__(self, podman: Podman, image: str, *options: str) -> None:
        port = free_port()
        self.name = f"penstock-{port}"
        super().__init__(podman, self.name)
        self.url = f"http://127.0.0.1:{port}"
        health = f"PENSTOCK_HEALTH_URL={self.url}/health/ready"
        self._command = (
            *("run", "--detach", "--name", self.name, "--network=host", "--env", health, *options),
            *(image, "serve", "--host", "127.0.0.1", "--port", str(port)),
        )

    def __enter__(self) -> Self:
        self._podman.run(*self._command)
        try:
            wait_until(self._is_ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        print(self.log())  # pytest shows it where a test fails
        self._podman.run("rm", "--force", "--time", "5", self.name)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready").status_code == 200
        except httpx.TransportError:
            assert self._podman.inspect(self.name)["State"]["Running"], "it has ended"
            return False
