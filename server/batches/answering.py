"""Lines to answers: so many at once, asked again where the server is full."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from engine_core.refusal import RefusalError
from server.batches.base import Answer, Line, Put
from server.batches.results import JobStoppedError
from server.batches.room import Room
from server.errors import ERRORS, ErrorBody, ErrorDetail, error_body
from server.first_error import first_error

MAX_ANSWER_BYTES = 256 << 20
"""Answers are taken whole: the longest."""
NOT_OURS = "internal_error"
"""The code of what is no error of this API."""

_OPEN_BYTES = 256 << 20
_TOO_MANY = 429
_WAIT = frozenset({"overloaded", "not_ready"})
_LOST = frozenset({"engine_dead", "unhealthy", "draining", "invalid_api_key"})
_OF_GATEWAYS = frozenset({401, 403, 502, 503, 504})
_SECONDS = 1.0

Exchange = Callable[[str, bytes], Awaitable[Answer]]
"""Posts JSON to a path. The answer in place of one of more than MAX_ANSWER_BYTES is `too_long`."""


async def answer_all(lines: Iterable[Line], put: Put, exchange: Exchange, *, at_once: int) -> None:
    """Answer all lines, begun in order, at most `at_once` of them together.

    Raises the first JobStoppedError, which ends the rest.
    """
    room = Room(at_once, _OPEN_BYTES)

    async def answer(line: Line, keep: Callable[[int, int], None]) -> None:
        try:
            put(line, await answered(exchange, line))
        finally:
            keep(0, 0)

    with first_error(JobStoppedError):
        async with asyncio.TaskGroup() as tasks:
            for line in lines:
                keep = await room.take(1, len(line.body))
                tasks.create_task(answer(line, keep))
                # Those that have begun come to their engine before more are read.
                await asyncio.sleep(0)


async def answered(exchange: Exchange, line: Line) -> Answer:
    """Get the server's answer to `line`, be it an error. A server that is full, or still loads, is
    asked again.

    Raises JobStoppedError where every other line would get the same error.
    """
    while True:
        answer = await exchange(line.url, line.body)
        if answer.is_good:
            return answer
        error = error_of(answer)
        by_gateway = error.code == NOT_OURS and answer.status in _OF_GATEWAYS
        if error.code in _LOST or by_gateway:
            raise JobStoppedError(f"{error.message} ({error.code})")
        if error.code not in _WAIT and answer.status != _TOO_MANY:
            return answer
        await asyncio.sleep(answer.retry_after or _SECONDS)


def error_of(answer: Answer) -> ErrorDetail:
    """The error in an answer that is not good. If it is not of this API, its code is NOT_OURS."""
    try:
        return msgspec.json.decode(answer.body, type=ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = answer.body[:200].decode(errors="replace")
        return ErrorDetail(f"status {answer.status}: {text}", "", None, NOT_OURS)


def too_long(size: int, request_id: str) -> Answer:
    """An error in place of an answer of `size` bytes."""
    message = (
        f"the answer has {size} bytes, of which a batch takes at most {MAX_ANSWER_BYTES}: ask for "
        "fewer choices of a prompt, or fewer log-probabilities"
    )
    error = RefusalError("too_large", message)
    return Answer(ERRORS[error.code].status, request_id, error_body(error))
