"""The master's address, `HOST:PORT`, by number: the first of three ports that follow each other."""

import errno
import random
import socket
from contextlib import ExitStack

import msgspec

_PORTS = 3
_LAST_PORT = 65_535
_UNASKED = range(20_000, 32_000)
"""Ports that neither the kernel nor Ray gives to anybody by itself."""


class AddressError(ValueError):
    """An address that cannot be used. One line says why."""


class Address(msgspec.Struct, frozen=True):
    """`host` is a number, never a name. Its three ports are the cluster's, the one by which an
    engine core reaches its workers, and that of sampled tokens."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "Address":
        """Look up what `HOST:PORT` stands for now. Raises AddressError."""
        name, _, port = text.rpartition(":")
        if not 1 <= int(port) <= _LAST_PORT - _PORTS + 1:
            last = _LAST_PORT - _PORTS + 1
            raise AddressError(f"the port of {text} is not 1 to {last}: the next two are used, too")
        try:
            found = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise AddressError(f"{text} cannot be looked up: {reason}") from None
        return cls(str(found[0][4][0]), int(port))

    @classmethod
    def free(cls, host: str) -> "Address":
        """Three ports of this host that nobody has. Raises AddressError for another host's."""
        while True:
            address = cls(host, random.choice(_UNASKED))  # noqa: S311 (no secret)
            try:
                with ExitStack() as stack:
                    for port in range(address.port, address.port + _PORTS):
                        stack.enter_context(socket.socket(address.family)).bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise AddressError(f"cannot listen on {host}: {error.strerror}") from None
            else:
                return address

    def endpoint(self, port: int = 0) -> str:
        """For ZMQ, of the first port or of one behind it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port + port}"

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def __str__(self) -> str:
        return self.endpoint().removeprefix("tcp://")
