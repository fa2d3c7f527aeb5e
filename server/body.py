"""Request bodies: read within bounds, decoded into a typed struct, faults named by field."""

import re
from typing import Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from server.errors import APIError

Struct = TypeVar("Struct", bound=msgspec.Struct)

# msgspec ends its messages with the path of the fault, or quotes the name of a missing field.
# Neither says which entry of an object it is about: a value's path ends in `[...]`.
_AT_PATH = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>.*?)(\[\.\.\.\])?`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*?)`")

# Up to so many times the permitted size, a body is read to its end before it is refused.
_DROPPED_BODIES = 4


class Body(Generic[Struct]):
    """Reads bodies of one type. The fields that `not_served` itself declares are refused by name
    unless neutral."""

    def __init__(
        self, struct: type[Struct], not_served: type[msgspec.Struct] | None = None
    ) -> None:
        self._decoder = msgspec.json.Decoder(struct)
        self._not_served = frozenset(not_served.__annotations__ if not_served else ())

    async def read(self, request: Request, max_bytes: int) -> Struct:
        """Raises APIError: `body_too_large`, or `invalid_request` with the field as `param`."""
        return self.decode(await _read(request, max_bytes))

    def decode(self, raw: bytes) -> Struct:
        """Raises APIError `invalid_request`, with the field as `param` where there is one."""
        try:
            # msgspec checks the strings that it keeps; a body is UTF-8 as a whole or not at all.
            return self._decoder.decode(raw.decode())
        except msgspec.ValidationError as error:
            raise self._fault(str(error)) from None
        except UnicodeDecodeError as error:
            raise APIError("invalid_request", f"the body is not UTF-8: {error}") from None
        except msgspec.DecodeError as error:
            raise APIError("invalid_request", f"the body is not valid JSON: {error}") from None
        except RecursionError:
            raise APIError("invalid_request", "the body is nested too deeply") from None

    def _fault(self, message: str) -> APIError:
        """The decoder's complaint, as a person who wrote the field would want to read it."""
        reason, param, subject = message, None, "the body"
        if at := _AT_PATH.search(message):
            reason, param = message[: at.start()], at["path"]
            subject = f"a key of {param}" if at["key"] else param or subject
        if missing := _MISSING.match(reason):
            param = f"{param}.{missing['name']}" if param else missing["name"]
            reason, subject = "is required", param
        field = re.split(r"[.\[]", param or "", maxsplit=1)[0]
        if field in self._not_served:
            return APIError(
                "invalid_request", f"{field} is known but not served here: leave it out", field
            )
        return APIError("invalid_request", f"{subject}: {reason[0].lower()}{reason[1:]}", param)


async def _read(request: Request, max_bytes: int) -> bytes:
    """The raw body. Raises APIError `body_too_large`.

    What is somewhat too large is read to its end and dropped: many clients read no answer before
    they have sent their body. What is far too large ends the connection.
    """
    hopeless = max_bytes * _DROPPED_BODIES
    if int(request.headers.get("content-length", 0)) > hopeless:
        raise _too_large(max_bytes, {"connection": "close"})
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size <= max_bytes:
                parts.append(part)
            elif size > hopeless:
                raise _too_large(max_bytes, {"connection": "close"})
    except ClientDisconnect:
        raise APIError("invalid_request", "the client left before its body was whole") from None
    if size > max_bytes:
        raise _too_large(max_bytes)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(max_bytes: int, headers: dict[str, str] | None = None) -> APIError:
    return APIError("body_too_large", f"the body is larger than {max_bytes} bytes", None, headers)
