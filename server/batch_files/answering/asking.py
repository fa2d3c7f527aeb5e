"""One line's request: tried again where the server is full, until there is an answer."""

import asyncio

import msgspec

from server.batch_files.batch_lines import Answer, Line
from server.batches.posting import Exchange, Reply
from server.batches.results import JobStoppedError
from server.errors import ErrorBody

_WAIT = frozenset({"overloaded", "not_ready"})
_LOST = frozenset({"engine_dead", "unhealthy", "draining", "invalid_api_key"})
_TOO_MANY = 429
_OF_GATEWAYS = frozenset({401, 403, 502, 503, 504})
_SECONDS = 1.0


async def answered(exchange: Exchange, line: Line) -> Answer:
    """What the server answers to `line`, be it an error.

    Raises JobStoppedError where every other line would get the same error.
    """
    while True:
        reply = await exchange(line.url, line.body)
        answer = Answer(reply.status, reply.request_id, reply.body)
        if answer.is_good:
            return answer
        code, message = _error(reply)
        if code in _WAIT or reply.status == _TOO_MANY:
            await asyncio.sleep(reply.retry_after or _SECONDS)
        elif code in _LOST or (code is None and reply.status in _OF_GATEWAYS):
            raise JobStoppedError(message)
        else:
            return answer


def _error(reply: Reply) -> tuple[str | None, str]:
    """Its code and message; no code for what is no error of this API."""
    try:
        error = msgspec.json.decode(reply.body, type=ErrorBody).error
    except msgspec.DecodeError:
        text = reply.body[:200].decode(errors="replace")
        return None, f"status {reply.status}: {text}"
    return error.code, f"{error.message} ({error.code})"
