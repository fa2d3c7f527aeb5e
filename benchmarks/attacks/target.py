"""The daemon that is attacked, as an attacker sees it: raw sockets and whole requests."""

import http.client
import json
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

GENERATOR, EMBEDDER = "penstock-demo", "all-MiniLM-L6-v2"
_AT_ONCE = 1 << 20
_SERVER_ERRORS = re.compile(
    rb'^penstock_http_requests_total\{.*status="5..".*\} (\S+)$', re.MULTILINE
)


class Target(NamedTuple):
    """A port of loopback, and the attacker's API key, if it has one."""

    port: int
    key: str | None = None

    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        """A connection; with a small `receive_buffer`, in bytes, the daemon notices at once that
        nothing is read."""
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(300)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def head(self, path: str, length: int) -> bytes:
        """The request line and the headers of a body of `length` bytes."""
        lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {length}"]
        lines += [f"{name}: {value}" for name, value in self.headers().items()]
        return "\r\n".join([*lines, "", ""]).encode()

    def send(self, path: str, body: Any, *, receive_buffer: int | None = None) -> socket.socket:
        """A whole request, whose answer nobody reads yet."""
        data = encoded(body)
        connection = self.connect(receive_buffer=receive_buffer)
        with suppress(OSError):  # it may be refused before it has come
            connection.sendall(self.head(path, len(data)) + data)
        return connection

    def ask(self, path: str, body: Any, timeout: float = 300) -> int:
        """The status of an answer that is read; 0 for a connection that broke."""
        return self.answer("POST", path, encoded(body), self.headers(), timeout)[0]

    def server_errors(self) -> int:
        """How many requests the daemon has answered with 500 to 599."""
        _, metrics = self.answer("GET", "/metrics", None, self.headers())
        return int(sum(map(float, _SERVER_ERRORS.findall(metrics))))

    def answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float = 300,
    ) -> tuple[int, bytes]:
        """The status and the first MiB of an answer, all of which is read; 0 if the connection
        broke."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            client.request(method, path, body, headers)
            answer = client.getresponse()
            beginning = answer.read(_AT_ONCE)
            while answer.read(_AT_ONCE):
                pass
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            client.close()
        return answer.status, beginning


def encoded(body: Any) -> bytes:
    """A body as JSON without blanks; bytes as they are."""
    if isinstance(body, bytes):
        return body
    return json.dumps(body, separators=(",", ":")).encode()
