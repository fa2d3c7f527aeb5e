"""Requests and the state folder: whose a request is, what fails there, a list's part."""

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
from server.service.service import record_of, service_of

Item = TypeVar("Item")
_P = ParamSpec("_P")
_ResultT = TypeVar("_ResultT")


class Stored(NamedTuple):
    """The state folder, and the `owner` whose things in it a request may see."""

    state: StateFolder
    owner: str


def stored_of(request: Request) -> Stored:
    """Raises RefusalError `state_unavailable` where clients can store nothing."""
    service = service_of(request)
    if service.state is None:
        raise RefusalError("state_unavailable", service.config.state.fault)
    return Stored(service.state, record_of(request).client.owner)


@contextmanager
def storing() -> Generator[None]:
    """Turn what fails in the state folder into a RefusalError: `state_unavailable`,
    `storage_full`."""
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
    """Do `work` on the state folder in a thread. Raises RefusalError as `storing` does."""
    with storing():
        return await asyncio.to_thread(work, *arguments, **named)


async def page_of(
    page: Page, find: Callable[[Page], list[Item]], shown: Callable[[Item], Any]
) -> dict[str, Any]:
    """The fields of a list of what `find` finds, in a thread. `shown` makes what clients see of an
    item. Raises RefusalError, also for an `after` that is not there."""
    try:
        found = await in_state(find, page)
    except UnknownItemError:
        message = f"after: there is no {quoted(page.after)}"
        raise RefusalError("invalid_request", message, "after") from None
    data = [shown(item) for item in found[: page.limit]]
    return {
        "data": data,
        "first_id": data[0].id if data else None,
        "last_id": data[-1].id if data else None,
        "has_more": len(found) > len(data),
    }
