"""Bodies on their way: how long they may take, and the account of what they hold."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from engine_core.refusal import RefusalError
from server.http.disconnect import ClientLeftError
from server.service.ledger import Account
from server.service.service import record_of, service_of

# A body has the first, and the time that it takes at this rate.
_READING_S = 10
_READING_RATE = 16 << 10


def has_come(scope: Scope) -> bool:
    """Whether the whole body of a request is here already."""
    return "body_has_come" in scope.get("state", ())


def length_of(request: Request, unknown: int) -> int:
    """Bytes of the body, or `unknown` where the request does not say."""
    return int(request.headers.get("content-length", unknown))


def body_account(request: Request) -> Account:
    """An account for a body, in part or whole."""
    key = record_of(request).client.share.number
    return service_of(request).ledger.account(key, "the body of this request")


@asynccontextmanager
async def incoming(request: Request, length: int) -> AsyncGenerator[Account]:
    """Read a body of `length` bytes within the block, and have the account hold what has come.

    Raises RefusalError `overloaded` or `body_timeout`, or ClientLeftError.
    """
    seconds = _READING_S + length / _READING_RATE
    limit = asyncio.timeout(seconds)
    try:
        with body_account(request) as account:
            async with limit:
                yield account
    except ClientDisconnect:
        raise ClientLeftError from None
    except TimeoutError:
        if not limit.expired():  # that of a disk, say
            raise
        message = f"the body has not come within {seconds:.0f} s"
        raise RefusalError("body_timeout", message) from None
