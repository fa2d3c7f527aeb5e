"""Endpoints made of functions, which have what their parameters name."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from inspect import get_annotations
from typing import Any

from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.http.body import Body, CancelOnDisconnect, converted
from server.service.endpoint import OWN_ERRORS, Endpoint, Errors, Handler, Operation, operation
from server.service.service import Model, json_answer, record_of, service_of

Function = Callable[..., Awaitable[object]]
FindModel = Callable[[Request, str | None], Model]
"""Returns the model that a body names, or means without a name. Raises RefusalError."""


def answers(
    endpoint: Endpoint,
    described: Operation | None = None,
    *,
    find: FindModel | None = None,
    errors: Errors = OWN_ERRORS,
) -> Callable[[Function], Endpoint]:
    """Have a function answer an endpoint, as `reads` says. It is `described` where its types do not
    do so: forms of several bodies, streams, encoded parts."""

    def decorate(function: Function) -> Endpoint:
        endpoint.handler = reads(find or endpoint, errors)(function)
        endpoint.operation = described or _operation(function, errors)
        return endpoint

    return decorate


def reads(
    model: Endpoint | FindModel, errors: Errors = OWN_ERRORS
) -> Callable[[Function], Handler]:
    """Make a handler of a function with a `request` and any of these parameters:

    body   the body, of this type
    model  the model that the body names: one that serves an endpoint, or that a function finds
    query  the query's parameters
    others a parameter of the path, `Annotated` with its description

    What it returns is the response, or becomes its JSON. If it has a model, it is cancelled when
    the client leaves.
    """

    def decorate(function: Function) -> Handler:
        kinds = get_annotations(function)
        in_path, body = _in_path(kinds), Body(kinds["body"]) if "body" in kinds else None

        async def given(request: Request) -> dict[str, Any]:
            found = {name: request.path_params[name] for name in in_path}
            if "query" in kinds:
                found["query"] = converted(request.query_params, kinds["query"])
            if body is not None:
                found["body"] = await body.read(request)
            if "model" in kinds:
                found["model"] = _found(request, found.get("body"), model)
            return found

        async def handler(request: Request) -> Response:
            try:
                found = await given(request)
                has_model = "model" in found
                with CancelOnDisconnect(request.receive) if has_model else nullcontext():
                    answer = await function(request, **found)
            except RefusalError as error:
                if errors.answer is None:
                    raise
                return errors.answer(error)
            return answer if isinstance(answer, Response) else json_answer(answer)

        # FastAPI describes the handler by these, and takes its parameters for the request's.
        handler.__name__, handler.__doc__ = function.__name__, function.__doc__
        return handler

    return decorate


def _operation(function: Function, errors: Errors) -> Operation:
    kinds = get_annotations(function)
    path = {name: kinds[name].__metadata__[0] for name in _in_path(kinds)}
    body, query = kinds.get("body"), kinds.get("query")
    return operation(kinds["return"], body, path=path, query=query, errors=errors)


def _in_path(kinds: dict[str, Any]) -> set[str]:
    """The names of the parameters that are parameters of the path."""
    return kinds.keys() - {"request", "_", "body", "query", "model", "return"}


def _found(request: Request, body: object, model: Endpoint | FindModel) -> Model:
    """The model that `body` names. A body's priority has to be one that the engine permits."""
    name: str | None = getattr(body, "model", None)
    if not isinstance(model, Endpoint):
        return model(request, name)
    priority: int | None = None
    if hasattr(body, "priority"):
        priority = getattr(body, "priority", None) or 0
    return service_of(request).find(record_of(request), name, model, priority)
