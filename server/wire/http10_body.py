"""Answers to clients of HTTP/1.0, which do not know chunks: a body without a length ends with its
connection (RFC 9112, 6.3)."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def answer_as_http10(cycle: RequestResponseCycle) -> None:
    """Answer `cycle`, whose application has not begun, as HTTP/1.0 requires."""
    cycle.keep_alive = False
    cycle.waiting_for_100_continue = False
    cycle.send = _Http10Send(cycle).send


class _Http10Send:
    """A cycle's `send` that adds no chunks to a body of unknown length."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._has_length = False

    async def send(self, message: Any) -> None:
        """Each part is announced to the cycle as the whole body."""
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            self._has_length = b"content-length" in names
            if b"connection" not in names:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
        if not self._has_length:
            self._cycle.chunked_encoding = False
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)
