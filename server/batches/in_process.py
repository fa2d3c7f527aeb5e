"""The HTTP API without a socket: requests are handed to the application itself."""

import asyncio

from starlette.types import ASGIApp, Message

from server.batches.answering import MAX_ANSWER_BYTES, Answer, too_long


async def exchange(app: ASGIApp, path: str, data: bytes) -> Answer:
    """Post to an application, as `answering.Exchange` says."""
    to_read: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
    answer: list[Message] = []

    async def receive() -> Message:
        if to_read:
            return to_read.pop()
        # The client stays: who cancels the request cancels this task.
        return await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        answer.append(message)

    await app(_scope(path, len(data)), receive, send)
    start, *parts = answer
    headers = dict(start["headers"])
    request_id = headers[b"x-request-id"].decode()
    wait = headers.get(b"retry-after")
    body = b"".join(part.get("body", b"") for part in parts)
    if len(body) > MAX_ANSWER_BYTES:
        return too_long(len(body), request_id)
    return Answer(start["status"], request_id, body, None if wait is None else float(wait))


def _scope(path: str, size: int) -> dict[str, object]:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(size).encode())]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": None,
    }
