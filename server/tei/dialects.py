"""Whose dialect a body at a shared path is: its fields, looked at before it is read."""

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.types import Message

from server.http.body import whole_body

_NULL = Raw(b"null")
_fields = msgspec.json.Decoder(dict[str, Raw])


async def looked_into(request: Request) -> tuple[Request, dict[str, Raw]]:
    """The request, whose body is still to be read, and the fields of the body that are not null.

    A body that cannot be read has none. Raises RefusalError.
    """
    raw = await whole_body(request)
    try:
        fields = _fields.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fields = {}
    bodies: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive() -> Message:
        return bodies.pop() if bodies else await request.receive()

    given = {name: value for name, value in fields.items() if value != _NULL}
    return Request(request.scope, receive), given
