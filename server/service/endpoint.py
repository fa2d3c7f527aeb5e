"""An endpoint of the HTTP API, declared and described by the module that serves it."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from server.errors import ERRORS, ErrorBody
from server.settings.settings import ServerConfig
from workers.contract.config import ExecutionConfig, Task

Handler = Callable[[Request], Awaitable[Response]]
Method = Literal["GET", "POST", "DELETE"]

_LAST = 1_000

REF: Final = "#/components/schemas/{name}"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The OpenAPI description of an endpoint.

    arguments  keyword arguments of FastAPI's routes
    types      the structs to which they refer by name
    path       texts of the parameters in the path
    query      a struct of the parameters in the query
    """

    arguments: dict[str, Any]
    types: tuple[Any, ...] = ()
    path: dict[str, str] = {}
    query: type[msgspec.Struct] | None = None


def operation(
    answer: type[msgspec.Struct] | None,
    body: type[msgspec.Struct] | None = None,
    *,
    chunk: type[msgspec.Struct] | None = None,
    form: type[msgspec.Struct] | None = None,
    path: dict[str, str] | None = None,
    query: type[msgspec.Struct] | None = None,
) -> Operation:
    """An endpoint's answer, None for whatever a file holds, and body, which may be a `form`. A
    streamed answer consists of `chunk`s. `path` describes its parameters, by name."""
    content: dict[str, Any] = (
        {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        if answer is None
        else {"application/json": {"schema": ref(answer)}}
    )
    if chunk is not None:
        content["text/event-stream"] = {"schema": _event(chunk)}
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "Success", "content": content}
    }
    error = {"application/json": {"schema": ref(ErrorBody)}}
    if body is None:
        responses["default"] = {"description": "Any error", "content": error}
    else:
        for status in sorted({kind.status for kind in ERRORS.values()}):
            codes = ", ".join(code for code, kind in ERRORS.items() if kind.status == status)
            responses[status] = {"description": f"`code`: {codes}", "content": error}
    return Operation(
        arguments={"responses": responses, "openapi_extra": _body(body, form)},
        types=tuple(kind for kind in (answer, body, chunk, form, ErrorBody) if kind is not None),
        path=path or {},
        query=query,
    )


class Endpoint:
    """A method and path, the handler that answers, and which models serve it.

        CLASSIFY = Endpoint("POST", "/v1/classify", operation(Labels, Texts), tasks=("classify",))

        @CLASSIFY.answered_by
        async def create_classifications(request: Request) -> Response: ...

    The application finds each that a module of `server.api` declares. The fields of its request are
    also listed in `server/schemas/known_options.toml`. Strings under fields and examples become the
    OpenAPI document, and tables of the pages (`python -m tools.api_tables`).
    """

    def __init__(
        self,
        method: Method,
        path: str,
        operation: Operation,
        *,
        tasks: tuple[Task, ...] = (),
        relevance: bool = False,
        variant_of: "Endpoint | None" = None,
        order: int = _LAST,
        needs_key: bool | Literal["metrics_key"] = True,
    ) -> None:
        """Models of these `tasks` serve it. There are none if it is not about a model. With
        `relevance` only those serve it whose scores are one (`ExecutionConfig.scores_relevance`). A
        variant is the same service in another form: the list of a model's endpoints has only the
        original. `order` sorts the documentation and that list. With `needs_key` only clients with
        an API key are answered: always, never, or if the setting of that name says so."""
        self.method: Method = method
        self.path = path
        self.operation = operation
        self.tasks = tasks if variant_of is None else variant_of.tasks
        self.relevance = relevance if variant_of is None else variant_of.relevance
        self.variant_of = variant_of
        self.order = order
        self._needs_key: bool | Literal["metrics_key"] = needs_key
        self._handler: Handler | None = None

    def at(self, path: str, operation: Operation | None = None, *, order: int) -> "Endpoint":
        """A variant at another path: with the same bodies and answers, or with an `operation`."""
        described, original = operation or self.operation, self.variant_of or self
        return Endpoint(self.method, path, described, variant_of=original, order=order)

    @property
    def path_format(self) -> str:
        """The path with its parameters written `{name}`, whatever their kind."""
        return compile_path(self.path)[1]

    @property
    def handler(self) -> Handler:
        if self._handler is None:
            # A declaration without `answered_by`: a mistake in its module, found at start.
            raise NotImplementedError(f"{self.method} {self.path} has no handler")
        return self._handler

    def requires_key(self, config: ServerConfig) -> bool:
        """Whether a daemon that has API keys answers only those who send one."""
        if self._needs_key == "metrics_key":
            return config.metrics_key
        return self._needs_key

    def answered_by(self, handler: Handler) -> Handler:
        self._handler = handler
        return handler

    def is_served_by(self, execution: ExecutionConfig) -> bool:
        """Whether a model that is run this way serves it."""
        return execution.task in self.tasks and (execution.scores_relevance or not self.relevance)


def ref(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": REF.format(name=struct.__name__)}


def _body(body: type[msgspec.Struct] | None, form: type[msgspec.Struct] | None) -> dict[str, Any]:
    forms = {"application/json": body, "multipart/form-data": form}
    content = {kind: {"schema": ref(struct)} for kind, struct in forms.items() if struct}
    return {"requestBody": {"required": True, "content": content}} if content else {}


def _event(chunk: type[msgspec.Struct]) -> dict[str, Any]:
    """One event of a stream: a chunk or an error. `[DONE]` at the end of a stream without error."""
    json = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [ref(chunk), ref(ErrorBody)]},
    }
    data = {"anyOf": [{"const": "[DONE]"}, json]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}
