"""The state folder for requests: their owner, its failures, pages of lists."""

import asyncio
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

from starlette.requests import Request

from engine_core.refusal import RefusalError
from server.batches.state.database import Page, StateFolderError, UnknownItemError
from server.batches.state.state_folder import StateFolder
from server.errors import quoted
from server.schemas.common import invalid
from server.service.service import record_of, service_of

Item = TypeVar("Item")
_P = ParamSpec("_P")
_ResultT = TypeVar("_ResultT")


class Stored(NamedTuple):
    """The state folder, and the `owner` whose items a request may see."""

    state: StateFolder
    owner: str


def stored_of(request: Request) -> Stored:
    """The state of a request. Raises RefusalError `state_unavailable` if nothing can be stored."""
    service = service_of(request)
    if service.state is None:
        raise RefusalError("state_unavailable", service.config.state.fault)
    return Stored(service.state, record_of(request).client.owner)


@contextmanager
def storing() -> Generator[None]:
    """Turn failures of the state folder into RefusalError: `state_unavailable`, `storage_full`."""
    try:
        yield
    except StateFolderError:
        message = "the server's folder for files and batches is damaged: its log has the reason"
        raise RefusalError("state_unavailable", message) from None
    except sqlite3.OperationalError as error:
        raise RefusalError("storage_full", f"nothing can be stored: {error}") from None
    except OSError as error:
        raise RefusalError("storage_full", f"nothing can be stored: {error.strerror}") from None


async def in_state(
    work: Callable[_P, _ResultT], *arguments: _P.args, **named: _P.kwargs
) -> _ResultT:
    """Do `work` in a thread. Raises RefusalError as `storing` does."""
    with storing():
        return await asyncio.to_thread(work, *arguments, **named)


async def page_of(
    page: Page, find: Callable[[Page], list[Item]], shown: Callable[[Item], Any]
) -> dict[str, Any]:
    """The fields of a list of the items that `find` finds in a thread, each `shown` to clients.
    Raises RefusalError, also for an unknown `after`."""
    try:
        found = await in_state(find, page)
    except UnknownItemError:
        raise invalid("after", f"there is no {quoted(page.after)}") from None
    data = [shown(item) for item in found[: page.limit]]
    return {
        "data": data,
        "first_id": data[0].id if data else None,
        "last_id": data[-1].id if data else None,
        "has_more": len(found) > len(data),
    }
