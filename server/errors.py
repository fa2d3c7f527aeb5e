"""Every error that a client can get: one table from code to HTTP status, type and advice."""

import math
import re
from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec

from engine_core.refusal import ErrorCode, RefusalError


class ErrorKind(NamedTuple):
    """A code's HTTP status, OpenAI's `type`, seconds until the client may retry, other headers."""

    status: int
    type: str
    retry_after: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


ERRORS: dict[ErrorCode, ErrorKind] = {
    "invalid_request": ErrorKind(400, "invalid_request_error"),
    "context_length_exceeded": ErrorKind(400, "invalid_request_error"),
    "too_large": ErrorKind(400, "invalid_request_error"),
    "wrong_endpoint": ErrorKind(400, "invalid_request_error"),
    "model_required": ErrorKind(400, "invalid_request_error"),
    "previous_response_not_found": ErrorKind(400, "invalid_request_error"),
    "websocket_connection_limit_reached": ErrorKind(400, "invalid_request_error"),
    "invalid_api_key": ErrorKind(
        401, "authentication_error", headers=(("www-authenticate", "Bearer"),)
    ),
    "quota_exceeded": ErrorKind(403, "invalid_request_error"),
    "model_not_found": ErrorKind(404, "invalid_request_error"),
    "not_found": ErrorKind(404, "invalid_request_error"),
    "method_not_allowed": ErrorKind(405, "invalid_request_error"),
    "body_timeout": ErrorKind(408, "invalid_request_error"),
    "gone": ErrorKind(410, "invalid_request_error"),
    "body_too_large": ErrorKind(413, "invalid_request_error"),
    "unsupported_encoding": ErrorKind(
        415, "invalid_request_error", headers=(("accept-encoding", "identity"),)
    ),
    "overloaded": ErrorKind(429, "rate_limit_error", retry_after=1),
    "head_too_large": ErrorKind(431, "invalid_request_error"),
    "row_failed": ErrorKind(500, "server_error"),
    "engine_dead": ErrorKind(500, "server_error"),
    "template_unavailable": ErrorKind(500, "server_error"),
    "internal_error": ErrorKind(500, "server_error"),
    "unsupported_transfer": ErrorKind(501, "invalid_request_error"),
    "state_unavailable": ErrorKind(501, "server_error"),
    "not_ready": ErrorKind(503, "server_error", retry_after=2),
    "unhealthy": ErrorKind(503, "server_error", retry_after=2),
    "draining": ErrorKind(503, "server_error", 5, headers=(("connection", "close"),)),
    "request_timeout": ErrorKind(504, "server_error"),
    "storage_full": ErrorKind(507, "server_error"),
}


class ErrorDetail(msgspec.Struct, frozen=True):
    """The error. `param` names the request's field at fault, with the index in a list."""

    message: str
    """The fault, in a sentence."""
    type: str
    """The kind of error, in OpenAI's words."""
    param: str | None
    """The field of the request that is at fault, or null."""
    code: str
    """The error's code, one of a fixed list."""


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success. `detail` is a copy of the message for clients
    of Jina and Voyage."""

    error: ErrorDetail
    """The fault."""
    detail: str
    """The message again, where some clients look for it."""


INTERNAL = RefusalError("internal_error", "the server failed; its log has the reason")
"""The answer to an unexpected exception."""


def error_headers(error: RefusalError) -> dict[str, str]:
    """The headers of an answer with `error`. Where it knows how long the request would have waited,
    this time is `retry-after`."""
    kind = ERRORS[error.code]
    wait = kind.retry_after if error.retry_after is None else max(1, math.ceil(error.retry_after))
    headers = dict(kind.headers)
    if wait is not None:
        headers["retry-after"] = str(wait)
    return headers


def error_body(error: RefusalError) -> bytes:
    detail = ErrorDetail(error.message, ERRORS[error.code].type, error.param, error.code)
    return msgspec.json.encode(ErrorBody(detail, detail=error.message))


_MOST: Final = 100
_LINE: Final = 1000
_MORE: Final = "…"


def shortened(text: str, most: int = _MOST) -> str:
    """`text`, or its beginning: `most` characters in all."""
    return text if len(text) <= most else text[: most - 1] + _MORE


def quoted(value: object) -> str:
    """`value` as Python writes it, or the beginning of that."""
    if isinstance(value, str):
        value = shortened(value)
    return shortened(repr(value), _MOST + 2)


def one_line(error: object) -> str:
    """An error's words, or the beginning of them, on one line that a terminal shows as it is."""
    beginning = str(error)[: _LINE + 1]
    return shortened("".join(sign if sign.isprintable() else " " for sign in beginning), _LINE)


# msgspec ends its messages with the path of the fault, or quotes the name of a field.
# Neither names the key of an entry in an object: the path of its value ends in `[...]`.
_AT_PATH = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>.*?)(?P<entry>\[\.\.\.\])?`$")
_FIELD = re.compile(r"^Object (?P<kind>missing required|contains unknown) field `(?P<name>.*?)`")
# A reason may quote the value.
_MOST_OF_REASON = 200
# No object of the API has more.
_MOST_ENTRIES = 1000

_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Fault(msgspec.Struct, frozen=True):
    """One validation error. `path` leads to the value or field, or for an entry or key to the
    object that holds it. It is empty for the whole input."""

    kind: Literal["value", "entry", "key", "missing", "unknown"]
    path: str
    reason: str


def fault_of(error: msgspec.ValidationError) -> Fault:
    reason = str(error)
    path, kind = "", "value"
    if at := _AT_PATH.search(reason):
        reason, path = reason[: at.start()], shortened(at["path"])
        kind = "key" if at["key"] else "entry" if at["entry"] else "value"
    if field := _FIELD.match(reason):
        name = shortened(field["name"])
        path = f"{path}.{name}" if path else name
        if field["kind"] == "missing required":
            return Fault("missing", path, "is required")
        return Fault("unknown", path, "is unknown")
    reason = shortened(reason[0].lower() + reason[1:], _MOST_OF_REASON)
    return Fault(kind, path, reason)


def entry_at_fault(whole: str, struct: type[msgspec.Struct], path: str) -> str | None:
    """The key of the entry that makes the object in a field of a `struct` invalid. None if it is
    not found: the rest may be no JSON, and only some entries are tried."""
    kinds = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    try:
        entries = _entries.decode(_entries.decode(whole)[path])
    except (msgspec.DecodeError, RecursionError, KeyError):
        return None
    for key, value in islice(entries.items(), _MOST_ENTRIES):
        try:
            msgspec.json.decode(msgspec.json.encode({key: value}), type=kinds[path])
        except (msgspec.ValidationError, RecursionError):
            return key
    return None


class CommandError(Exception):
    """A command cannot do what it is asked. Its message is one line, its exit code 1."""
