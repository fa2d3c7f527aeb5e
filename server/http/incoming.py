"""Bodies on their way: how long they may take, and the account of what they hold."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from engine_core.refusal import RefusalError
from server.service.ledger import Account
from server.service.service import record_of, service_of


class ClientLeftError(Exception):
    """The client disconnected before it had its answer: nobody reads one."""


class CancelOnDisconnect:
    """Cancels the body of its `with` block, and only that, when the client disconnects.

    The request's body must have been read. Leaving a block that was cancelled so raises
    ClientLeftError.
    """

    def __init__(self, receive: Receive) -> None:
        self._gone = False
        self._receive = receive

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that uses the block is run by a task"
        self._task = task
        self._watch = asyncio.create_task(self._wait())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        del self._watch  # its traceback leads back here: a cycle for the collector otherwise
        if self._gone and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise ClientLeftError from None

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()


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
