"""A real API process on a free port of the loopback, without the supervisor."""

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import msgspec

from server.settings.settings import ServerConfig
from tests.patience import wait_until
from workers.contract.process import DRAIN_SIGNAL


class ApiServer:
    """`with` starts the process and waits until it answers; leaving it kills what still runs."""

    def __init__(self, config: ServerConfig, folder: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._file = folder / f"server-{self.port}.json"
        self._file.write_bytes(msgspec.json.encode(config))
        self.output = folder / f"stdout-{self.port}"

    def __enter__(self) -> "ApiServer":
        command = [sys.executable, "-P", "-m", "server.daemon.api_process", str(self._file)]
        descriptor = self._listener.fileno()
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, str(descriptor), "0", "0"],
                pass_fds=[descriptor],
                stdin=subprocess.PIPE,
                stdout=output,
            )
        self._listener.close()
        self._wait_for(200, 503)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_ready(self) -> None:
        """Wait until every engine serves."""
        self._wait_for(200)

    def drain(self) -> None:
        """As the supervisor does it."""
        self.process.send_signal(DRAIN_SIGNAL)

    def _wait_for(self, *statuses: int) -> None:
        wait_until(lambda: self.process.poll() is not None or self._status() in statuses)
        assert self.process.poll() is None, "the API process has ended"

    def _status(self) -> int | None:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health/ready").status_code
        return None
