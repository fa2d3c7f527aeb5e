"""Whose dialect a body at a shared path is: its fields, looked at before it is read."""

import msgspec
from msgspec import Raw
from starlette.requests import Request

from server.http.body import looked_at

_NULL = Raw(b"null")
_fields = msgspec.json.Decoder(dict[str, Raw])


async def fields_of(request: Request) -> dict[str, Raw]:
    """The fields that are not null of a request's body, which is still to be read.

    A body that cannot be decoded has none. Raises RefusalError.
    """
    try:
        fields = _fields.decode(await looked_at(request))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {name: value for name, value in fields.items() if value != _NULL}
