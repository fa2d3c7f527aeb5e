"""The lines of OpenAI's batch format: requests, and what comes of them."""

from typing import Literal

import msgspec
from msgspec import Raw

from server.batches.answering import Answer, Line
from server.echoed import quoted
from server.msgspec_faults import fault_of

ENDPOINTS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/rerank")
"""What a line may ask for."""

BESIDE_BODY = 1 << 16
"""Bytes of a line that are not its body."""

_ONLINE_FIELDS = ("stream", "timeout", "priority")


class LineError(msgspec.Struct, frozen=True):
    """Why a line is no request, or got no answer."""

    code: str
    message: str


class LineRules(msgspec.Struct, frozen=True, kw_only=True):
    """What lines must keep to. With `endpoint` all have that `url`."""

    max_line_bytes: int
    endpoint: str | None = None


class _Given(msgspec.Struct):
    custom_id: str
    url: str
    body: Raw
    method: Literal["POST"]


class _Body(msgspec.Struct):
    model: object = None
    stream: object = None
    timeout: object = None
    priority: object = None


class _Named(msgspec.Struct):
    custom_id: str | None = None


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class _Output(msgspec.Struct, frozen=True):
    id: str
    custom_id: str | None
    response: _Response | None
    error: LineError | None = None


_given = msgspec.json.Decoder(_Given)
_body = msgspec.json.Decoder(_Body)
_named = msgspec.json.Decoder(_Named)
_output = msgspec.json.Decoder(_Output)
_encode = msgspec.json.Encoder().encode


def read_line(index: int, number: int, text: bytes, rules: LineRules) -> Line | LineError:
    """The request in line `number` of a file, or why there is none."""
    try:
        # msgspec checks the strings that it keeps; a line is UTF-8 as a whole or not at all.
        given = _given.decode(text.decode())
        body = _body.decode(given.body)
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        subject = f"{fault.path}: " if fault.path else "a line and its body are objects: "
        return LineError("invalid_request", f"line {number}: {subject}{fault.reason}")
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        return LineError("invalid_json_line", f"line {number}: not JSON: {error}")
    endpoints = ENDPOINTS if rules.endpoint is None else (rules.endpoint,)
    if given.url not in endpoints:
        known = ", ".join(endpoints)
        message = f"line {number}: url: {quoted(given.url)} is not one of {known}"
        return LineError("invalid_url", message)
    for field in _ONLINE_FIELDS:
        if getattr(body, field) not in (None, False):
            message = f"line {number}: {field}: is for requests that someone waits for"
            return LineError("invalid_request", message)
    model = body.model if isinstance(body.model, str) else None
    return Line(index, given.custom_id, given.url, bytes(given.body), model)


def custom_id_of(text: bytes) -> str | None:
    """The `custom_id` in a line, as far as it can be read."""
    try:
        return _named.decode(text).custom_id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def output_line(batch_id: str, custom_id: str | None, outcome: Answer | LineError) -> bytes:
    """A line of the output, without its end."""
    if isinstance(outcome, LineError):
        return _encode(_Output(batch_id, custom_id, None, outcome))
    response = _Response(outcome.status, outcome.request_id, Raw(outcome.body))
    return _encode(_Output(batch_id, custom_id, response))


def read_output(line: bytes) -> Answer | LineError:
    """What came of the request of a line that `output_line` has made."""
    output = _output.decode(line)
    if output.error is not None:
        return output.error
    assert output.response is not None, "an output line has a response or an error"
    response = output.response
    return Answer(response.status_code, response.request_id, bytes(response.body))
