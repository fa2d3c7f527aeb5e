"""Endpoints about a model: the body read, the model found, the answer written as JSON."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from fastapi import Request, Response

from server.http.body import Body, CancelOnDisconnect
from server.service.endpoint import Endpoint, Handler
from server.service.service import Model, json_answer, record_of, service_of

BodyT = TypeVar("BodyT", bound=msgspec.Struct)
FindModel = Callable[[Request, str | None], Model]
"""Returns the model that a body names, or means without a name. Raises RefusalError."""


def reads(
    kind: type[BodyT], model: Endpoint | FindModel
) -> Callable[[Callable[[Request, BodyT, Model], Awaitable[object]]], Handler]:
    """Make a handler of a function that answers a body of this `kind` for the model that it names.

    The `model` is one that serves the endpoint, or one that a function finds. What the function
    returns is the response, or becomes its JSON. It is cancelled when the client leaves.
    """
    reader = Body(kind)

    def decorate(answer: Callable[[Request, BodyT, Model], Awaitable[object]]) -> Handler:
        async def handler(request: Request) -> Response:
            body = await reader.read(request)
            found = _found(request, body, model)
            with CancelOnDisconnect(request.receive):
                answered = await answer(request, body, found)
                return answered if isinstance(answered, Response) else json_answer(answered)

        # FastAPI describes the handler by these, and takes its parameters for the request's.
        handler.__name__, handler.__doc__ = answer.__name__, answer.__doc__
        return handler

    return decorate


def _found(request: Request, body: msgspec.Struct, model: Endpoint | FindModel) -> Model:
    """The model that `body` names. A body's priority has to be one that the engine permits."""
    name: str | None = getattr(body, "model", None)
    if not isinstance(model, Endpoint):
        return model(request, name)
    priority: int | None = None
    if hasattr(body, "priority"):
        priority = getattr(body, "priority", None) or 0
    return service_of(request).find(record_of(request), name, model, priority)
