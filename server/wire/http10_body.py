"""Answers to clients of HTTP/1.0, which do not know chunks: a body without a length ends with its
connection (RFC 9112, 6.3)."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def answer_as_http10(cycle: RequestResponseCycle) -> None:
    """Answer `cycle`, whose application has not begun, as HTTP/1.0 requires."""
    send, has_length = cycle.send, False

    async def send_without_chunks(message: Any) -> None:
        """Announce each part to the cycle as the whole body."""
        nonlocal has_length
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            has_length = b"content-length" in names
            if b"connection" not in names:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
        if not has_length:
            cycle.chunked_encoding = False
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.keep_alive = False
    cycle.waiting_for_100_continue = False
    cycle.send = send_without_chunks
