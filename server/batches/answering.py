"""From lines to answers: a bounded number at once, each asked again where there is no room."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from engine_core.refusal import RefusalError
from server.batches.results import JobStoppedError, Sharing
from server.errors import ERRORS, ErrorBody, ErrorDetail, error_body
from server.event_loop import first_error
from server.http.anthropic_errors import AnthropicErrorBody


class Room:
    """Bounds work in two measures, such as rows and tokens. Use from one loop."""

    def __init__(self, first: int, second: int) -> None:
        self._most = (first, second)
        self._left = [first, second]
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, first: int, second: int) -> Callable[[int, int], None]:
        """Wait in turn for this much, or for the whole room if that is less. Returns a function to
        call with how much is kept from then on, and with zeros at the end."""
        taken = [min(pair) for pair in zip((first, second), self._most, strict=True)]
        async with self._turn:
            while any(own > left for own, left in zip(taken, self._left, strict=True)):
                self._changed.clear()
                await self._changed.wait()
            self._add(-taken[0], -taken[1])

        def keep(first: int, second: int) -> None:
            kept = min(first, taken[0]), min(second, taken[1])
            self._add(taken[0] - kept[0], taken[1] - kept[1])
            taken[:] = kept

        return keep

    def _add(self, first: int, second: int) -> None:
        self._left[0] += first
        self._left[1] += second
        self._changed.set()


MAX_ANSWER_BYTES = 256 << 20
"""The size of the longest answer that is kept."""
NOT_OURS = "internal_error"
"""The code of an answer that is no error of this API."""

_TOO_LONG = f"an answer has at most {MAX_ANSWER_BYTES:,} bytes in a batch"
_OPEN_BYTES = 256 << 20
_TOO_MANY = 429
_WAIT = frozenset({"overloaded", "not_ready"})
_LOST = frozenset({"engine_dead", "unhealthy", "draining", "invalid_api_key"})
_OF_GATEWAYS = frozenset({401, 403, 502, 503, 504})
_SECONDS = 1.0
_OK = 200


class Line(msgspec.Struct, frozen=True):
    """A request of a job. The body is JSON; a line of a file names `custom_id` and `model`."""

    index: int
    custom_id: str
    url: str
    body: bytes
    model: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """An endpoint's answer, a body of JSON in one line. `retry_after` is in seconds."""

    status: int
    request_id: str
    body: bytes
    retry_after: float | None = None

    @property
    def is_good(self) -> bool:
        return self.status == _OK


Put = Callable[[Line, Answer], None]
"""Takes the answer to a line. Raises JobStoppedError where no other line would get a result."""

Exchange = Callable[[str, bytes], Awaitable[Answer]]
"""Posts JSON to a path."""


class Backend:
    """Answers lines, by an engine of this process' own or by a daemon."""

    def __init__(self, exchange: Exchange, *, at_once: int, sharing: Sharing) -> None:
        """At most `at_once` lines are asked together, by `exchange`."""
        self.sharing: Sharing = sharing
        self._exchange, self._at_once = exchange, at_once

    async def answer(self, lines: Iterable[Line], put: Put) -> None:
        """Answer every line, if only by an error, and begin them in order: neighbours share
        prefixes. Raises the first JobStoppedError, which ends the rest."""
        room = Room(self._at_once, _OPEN_BYTES)

        async def answer(line: Line, keep: Callable[[int, int], None]) -> None:
            try:
                put(line, await answered(self._exchange, line))
            finally:
                keep(0, 0)

        with first_error(JobStoppedError):
            async with asyncio.TaskGroup() as tasks:
                for line in lines:
                    keep = await room.take(1, len(line.body))
                    tasks.create_task(answer(line, keep))
                    # Send what has begun before more lines are read.
                    await asyncio.sleep(0)


async def answered(exchange: Exchange, line: Line) -> Answer:
    """Get the server's answer to `line`, or its error. A server that is full or loading is asked
    again. Raises JobStoppedError for an error that every other line would get."""
    while True:
        answer = await exchange(line.url, line.body)
        if (size := len(answer.body)) > MAX_ANSWER_BYTES:
            message = (
                f"{_TOO_LONG}, and this has {size:,}: ask for fewer choices or log-probabilities"
            )
            body = error_body(RefusalError("too_large", message))
            return Answer(ERRORS["too_large"].status, answer.request_id, body)
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
        pass
    try:
        error = msgspec.json.decode(answer.body, type=AnthropicErrorBody).error
        code = error.details["error_code"]
        return ErrorDetail(error.message, error.type, error.details.get("param"), code)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
        text = answer.body[:200].decode(errors="replace")
        return ErrorDetail(f"status {answer.status}: {text}", "", None, NOT_OURS)
