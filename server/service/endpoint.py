"""An endpoint of the HTTP API, declared and described by the module that serves it."""

from collections.abc import Awaitable, Callable, Mapping
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import compile_path

from engine_core.refusal import RefusalError
from server.errors import ERRORS, ErrorBody
from server.settings.settings import ServerConfig
from workers.contract.config import ExecutionConfig, Task

Handler = Callable[[Request], Awaitable[Response]]
Method = Literal["GET", "POST", "DELETE"]
Tag = Literal["OpenAI", "Anthropic", "Cohere", "Jina, vLLM", "TEI", "Operations"]
"""The groups of the documentation, in its order: whose clients call an endpoint so."""

REF: Final = "#/components/schemas/{name}"


class Errors(NamedTuple):
    """How endpoints refuse: the type of the body, texts by status, and the answer to an error,
    which by default is the gate's."""

    body: Any
    statuses: Mapping[int, str]
    answer: Callable[[RefusalError], Response] | None = None


def _codes(status: int) -> str:
    return ", ".join(code for code, kind in ERRORS.items() if kind.status == status)


_STATUSES = sorted({kind.status for kind in ERRORS.values()})
OWN_ERRORS: Final = Errors(ErrorBody, {each: f"`code`: {_codes(each)}" for each in _STATUSES})


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The OpenAPI description of an endpoint.

    arguments  keyword arguments of FastAPI's routes
    types      the types to whose structs they refer by name
    path       texts of the parameters in the path
    query      a struct of the parameters in the query
    """

    arguments: dict[str, Any] = {}
    types: tuple[Any, ...] = ()
    path: dict[str, str] = {}
    query: type[msgspec.Struct] | None = None


def operation(
    answer: Any,
    body: Any = None,
    *,
    chunk: Any = None,
    form: type[msgspec.Struct] | None = None,
    path: dict[str, str] | None = None,
    query: type[msgspec.Struct] | None = None,
    errors: Errors = OWN_ERRORS,
    file_type: str = "application/octet-stream",
) -> Operation:
    """An endpoint whose answer and body have these types, where a union has one for each dialect.

    A streamed answer consists of `chunk`s, one that is a file has the `file_type`, a body may be a
    `form`. `path` describes the parameters of the path, the fields of `query` are those of the
    query.
    """
    is_file = answer is FileResponse
    binary = {"type": "string", "format": "binary"}
    kind = file_type if is_file else "application/json"
    content = {kind: {"schema": binary if is_file else _schema(answer)}}
    if chunk is not None:
        content["text/event-stream"] = {"schema": _event(chunk)}
    error = {"application/json": {"schema": _schema(errors.body)}}
    statuses = {"default": "Any error"} if body is None else errors.statuses
    return Operation(
        arguments={
            "responses": {
                200: {"description": "Success", "content": content},
                **{key: {"description": text, "content": error} for key, text in statuses.items()},
            },
            "openapi_extra": _body(body, form),
        },
        types=(answer, body, chunk, form, errors.body),
        path=path or {},
        query=query,
    )


class Endpoint:
    """A method and path, the handler that answers, and which models serve it.

        @answers(Endpoint("POST", "/v1/classify", "Jina, vLLM", tasks=("classify",)))
        async def classify(request: Request, body: Texts, model: Model) -> Labels: ...

    The application finds each that a module of `server.api` declares. The fields of its request are
    also listed in `server/schemas/known_options.toml`. Strings under fields and examples become the
    OpenAPI document, and tables of the pages (`python -m tools.api_tables`).
    """

    handler: Handler
    """The function that answers a request."""
    operation: Operation

    def __init__(
        self,
        method: Method,
        path: str,
        *tags: Tag,
        tasks: tuple[Task, ...] = (),
        relevance: bool = False,
        variant_of: "Endpoint | None" = None,
        order: int = 0,
        needs_key: bool | Literal["metrics_key"] = True,
    ) -> None:
        """Models of these `tasks` serve it. There are none if it is not about a model. With
        `relevance` only those serve it whose scores are one (`ExecutionConfig.scores_relevance`). A
        variant is the same service in another form: the list of a model's endpoints has only the
        original. `tags` group the documentation; `order` sorts it and that list. With `needs_key`
        only clients with an API key are answered: always, never, or if the setting of that name
        says so."""
        self.method: Method = method
        self.path = path
        self.tags = tags
        self.tasks = tasks if variant_of is None else variant_of.tasks
        self.relevance = relevance if variant_of is None else variant_of.relevance
        self.variant_of = variant_of
        self.order = order
        self._needs_key: bool | Literal["metrics_key"] = needs_key

    def at(self, path: str, *tags: Tag, order: int) -> "Endpoint":
        """A variant at another path, with the same tags, bodies and answers unless it gets its
        own."""
        original, needs_key = self.variant_of or self, self._needs_key
        variant = Endpoint(
            self.method,
            path,
            *tags or self.tags,
            variant_of=original,
            order=order,
            needs_key=needs_key,
        )
        variant.handler, variant.operation = self.handler, self.operation
        return variant

    @property
    def path_format(self) -> str:
        """The path with its parameters written `{name}`, whatever their kind."""
        return compile_path(self.path)[1]

    def requires_key(self, config: ServerConfig) -> bool:
        """Whether a daemon that has API keys answers only those who send one."""
        if self._needs_key == "metrics_key":
            return config.metrics_key
        return self._needs_key

    def is_served_by(self, execution: ExecutionConfig) -> bool:
        """Whether a model that is run this way serves it."""
        return execution.task in self.tasks and (execution.scores_relevance or not self.relevance)


def _schema(kind: Any) -> dict[str, Any]:
    """The schema of a type, by references to structs."""
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    schemas, _ = msgspec.json.schema_components(kinds, ref_template=REF)
    return schemas[0] if len(kinds) == 1 else {"anyOf": list(schemas)}


def _body(body: Any, form: type[msgspec.Struct] | None) -> dict[str, Any]:
    forms = {"application/json": body, "multipart/form-data": form}
    content = {name: {"schema": _schema(kind)} for name, kind in forms.items() if kind}
    return {"requestBody": {"required": True, "content": content}} if content else {}


def _event(chunk: Any) -> dict[str, Any]:
    """One event of a stream: a chunk or an error. `[DONE]` at the end of a stream without error."""
    json = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": _schema(chunk | ErrorBody),
    }
    data = {"anyOf": [{"const": "[DONE]"}, json]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}
