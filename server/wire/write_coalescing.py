"""Fewer system calls: a write to a socket is the dearest part of a short answer, and uvicorn writes
headers and body apart."""

import asyncio
from typing import Any

_STATUS_LINE = b"HTTP/"


class CoalescingTransport:
    """Holds the headers of an answer back until its body begins, or until the iteration of the
    event loop ends. The body is sent at once: a token does not wait for those of other streams.

    Everything else is the wrapped transport's.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Hold `data` back if it is headers; otherwise send it, after the headers that are held."""
        if self._held or not data.startswith(_STATUS_LINE):
            self._send(data)
        else:
            self._held = data
            self._loop.call_soon(self._send)

    def write_eof(self) -> None:
        """Send what is held back, then close for writing."""
        self._send()
        self._transport.write_eof()

    def close(self) -> None:
        """Send what is held back, then close."""
        self._send()
        self._transport.close()

    def _send(self, data: bytes = b"") -> None:
        data, self._held = self._held + data, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)
