"""What a request has to do with the state folder: whose it is, and a part of a list there."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from server.echoed import quoted
from server.errors import APIError
from server.metrics.request_record import record_of
from server.service.service import service_of
from server.state.database import Page, UnknownItemError
from server.state.state_folder import StateFolder

Item = TypeVar("Item")


class Stored(NamedTuple):
    """The state folder, and the `owner` whose things in it a request may see."""

    state: StateFolder
    owner: str


def stored_of(request: Request) -> Stored:
    """Raises APIError `state_unavailable` where clients can store nothing."""
    service = service_of(request)
    if service.state is None:
        raise APIError("state_unavailable", service.config.state.fault)
    return Stored(service.state, record_of(request).client.owner)


async def listed(page: Page, find: Callable[[Page], list[Item]]) -> list[Item]:
    """What `find` finds, in a thread. Raises APIError for an `after` that is not there."""
    try:
        return await asyncio.to_thread(find, page)
    except UnknownItemError:
        message = f"after: there is no {quoted(page.after)}"
        raise APIError("invalid_request", message, "after") from None
