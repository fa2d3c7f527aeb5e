"""Bodies on their way: how long they may take, and what they hold meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from engine_core.refusal import RefusalError
from server.body_limits.reading_budget import BodyBytes
from server.http.disconnect import ClientLeftError
from server.service.service import service_of

# A body has the first, and the time that it takes at this rate.
_READING_S = 10
_READING_RATE = 16 << 10


def has_come(scope: Scope) -> bool:
    """Whether the whole body of a request is here already."""
    return "body_has_come" in scope.get("state", ())


def length_of(request: Request, unknown: int) -> int:
    """Bytes of the body, or `unknown` where the request does not say."""
    return int(request.headers.get("content-length", unknown))


@asynccontextmanager
async def incoming(request: Request, length: int) -> AsyncGenerator[BodyBytes]:
    """Read a body of `length` bytes within the block, and count what it holds.

    Raises RefusalError `overloaded` or `body_timeout`, or ClientLeftError.
    """
    seconds = _READING_S + length / _READING_RATE
    limit = asyncio.timeout(seconds)
    try:
        with service_of(request).reading.body(length) as held:
            async with limit:
                yield held
    except ClientDisconnect:
        raise ClientLeftError from None
    except TimeoutError:
        if not limit.expired():  # that of a disk, say
            raise
        message = f"the body has not come within {seconds:.0f} s"
        raise RefusalError("body_timeout", message) from None
