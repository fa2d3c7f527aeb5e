"""Lines answered by a running daemon, over HTTP."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from functools import partial

import msgspec

from server.batches.answering import Answer, Backend, error_of
from server.batches.http_client import Address, HTTPClient
from server.batches.results import JobStoppedError
from server.errors import ErrorBody

_AT_ONCE = 64
_NO_ANSWER = 500


@asynccontextmanager
async def daemon_backend(url: str, api_key: str | None) -> AsyncGenerator[Backend]:
    """Answer lines by the daemon at `url`, to which they are online requests: its prefix cache
    shares whole blocks. Raises ValueError for a wrong address."""
    with closing(HTTPClient(Address.of(url, api_key))) as client:
        yield Backend(partial(_exchange, client), at_once=_AT_ONCE, sharing="by whole blocks")


async def _exchange(client: HTTPClient, path: str, data: bytes) -> Answer:
    """An `answering.Exchange`. Raises JobStoppedError if there is no answer."""
    address = client.address
    try:
        given = await client.exchange(address.request("POST", path, msgspec.Raw(data)))
    except OSError as error:
        where = f"http://{address.host}:{address.port}"
        raise JobStoppedError(f"{where} does not answer: {error!r}") from None
    return in_one_line(Answer(given.status, given.request_id, given.body, given.retry_after))


def in_one_line(answer: Answer) -> Answer:
    """Put the answer's JSON in one line. Another body, such as a gateway's, becomes an error of
    this API."""
    try:
        body = msgspec.json.format(answer.body, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        error = error_of(answer)
        body = msgspec.json.encode(ErrorBody(error, detail=error.message))
        status = _NO_ANSWER if answer.is_good else answer.status
        return msgspec.structs.replace(answer, status=status, body=body)
    return msgspec.structs.replace(answer, body=body)
