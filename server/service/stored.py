"""What a request has to do with the state folder: whose it is, and which part of a list it asks
for."""

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


def page_of(request: Request, *, most: int, default: int, sorted_by_client: bool) -> Page:
    """The page that the query asks for with `limit` (1 to `most`), `after`, and `order` (asc, desc)
    if clients may sort. Raises APIError."""
    query = request.query_params
    order = query.get("order", "desc") if sorted_by_client else "desc"
    if order not in ("asc", "desc"):
        raise APIError("invalid_request", "order: is asc or desc", "order")
    text = query.get("limit") or str(default)
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= limit <= most:
        raise APIError("invalid_request", f"limit: is a number from 1 to {most}", "limit")
    return Page(limit, query.get("after"), newest_first=order == "desc")
