"""A daemon that runs elsewhere, over HTTP."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from server.batches.answering import MAX_ANSWER_BYTES, Answer, Backend, error_of, too_long
from server.batches.http_client import Address, AnswerTooLongError, HTTPClient
from server.batches.results import JobStoppedError
from server.errors import ErrorBody

_AT_ONCE = 64
_NO_ANSWER = 500


@asynccontextmanager
async def daemon_backend(url: str, api_key: str | None) -> AsyncGenerator[Backend]:
    """The daemon at `url`, for which lines are ordinary requests: its prefix cache shares the whole
    blocks of what they begin with. Raises ValueError for what is no address."""
    try:
        client = HTTPClient(Address.of(url, api_key), MAX_ANSWER_BYTES)
    except ValueError as error:
        raise ValueError(f"url: {error}") from None
    try:
        yield Backend(partial(_exchange, client), at_once=_AT_ONCE, sharing="by whole blocks")
    finally:
        client.close()


async def _exchange(client: HTTPClient, path: str, data: bytes) -> Answer:
    """As `answering.Exchange` says. Raises JobStoppedError if there is no answer."""
    address = client.address
    try:
        given = await client.exchange(address.request("POST", path, msgspec.Raw(data)))
    except AnswerTooLongError as error:
        return too_long(error.size, error.request_id)
    except OSError as error:
        where = f"http://{address.host}:{address.port}"
        raise JobStoppedError(f"{where} does not answer: {error!r}") from None
    return in_one_line(Answer(given.status, given.request_id, given.body, given.retry_after))


def in_one_line(answer: Answer) -> Answer:
    """The answer with its JSON in one line. Other bodies, of a gateway, give way to an error of
    this API, so that files of results can have it."""
    try:
        body = msgspec.json.format(answer.body, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        error = error_of(answer)
        body = msgspec.json.encode(ErrorBody(error, detail=error.message))
        status = _NO_ANSWER if answer.is_good else answer.status
        return msgspec.structs.replace(answer, status=status, body=body)
    return msgspec.structs.replace(answer, body=body)
