"""Routes whose handlers read and write bodies themselves."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class PlainRoute(APIRoute):
    """A FastAPI route of a coroutine `handler(request) -> Response`.

    FastAPI describes it as any other, but solves no dependencies and validates nothing: handlers
    here decode their bodies with msgspec, at a fifth of the time that a request costs otherwise.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint
