"""One line's request: tried again where the server is full, until there is an answer."""

from server.batch_files.batch_lines import Answer, Line
from server.batches.posting import NOT_OURS, Exchange, settled
from server.batches.results import JobStoppedError

_LOST = frozenset({"engine_dead", "unhealthy", "draining", "invalid_api_key"})
_OF_GATEWAYS = frozenset({401, 403, 502, 503, 504})


async def answered(exchange: Exchange, line: Line) -> Answer:
    """What the server answers to `line`, be it an error.

    Raises JobStoppedError where every other line would get the same error.
    """
    reply, error = await settled(exchange, line.url, line.body)
    if error is not None:
        if error.code in _LOST:
            raise JobStoppedError(f"{error.message} ({error.code})")
        if error.code == NOT_OURS and reply.status in _OF_GATEWAYS:
            raise JobStoppedError(error.message)
    return Answer(reply.status, reply.request_id, reply.body)
