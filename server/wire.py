"""uvicorn's HTTP/1.1 protocol with fewer system calls.

A write to a socket is the dearest part of a short answer, and uvicorn writes head and body apart.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class CoalescingTransport:
    """Sends what is written in one turn of the event loop at once, at the end of the turn.

    Everything else is the wrapped transport's.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pending: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data` with whatever else this turn brings."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)

    def close(self) -> None:
        """Send what is pending, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if pending and not self._transport.is_closing():
            self._transport.write(b"".join(pending))


class CoalescingProtocol(HttpToolsProtocol):
    """HTTP/1.1 over a CoalescingTransport."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(cast("asyncio.Transport", CoalescingTransport(transport)))
