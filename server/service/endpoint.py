"""An endpoint of the HTTP API, declared by the module that serves it."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from server.settings.server_config import ServerConfig
from workers.contract.config import ExecutionConfig, Task

Handler = Callable[[Request], Awaitable[Response]]
Method = Literal["GET", "POST", "DELETE"]

_LAST = 1_000


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The OpenAPI description of an endpoint: keyword arguments of FastAPI's routes, and the types
    to which they refer by name."""

    arguments: dict[str, Any]
    types: tuple[Any, ...] = ()


class Endpoint:
    """A method and path, the handler that answers, and which models serve it.

        CLASSIFY = Endpoint("POST", "/v1/classify", operation(Labels, Texts), tasks=("classify",))

        @CLASSIFY.answered_by
        async def create_classifications(request: Request) -> Response: ...

    The application finds each that a module of `server.api`, `server.cohere`,
    `server.pooling` or `server.tei` declares. The fields of its request are also listed in
    `server/schemas/known_options.toml`.
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
        """Models of these `tasks` serve it; there are none if it is not about a model. With
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

    def at(self, path: str, *, order: int) -> "Endpoint":
        """A variant with the same bodies and answers, at another path."""
        return Endpoint(
            self.method, path, self.operation, variant_of=self.variant_of or self, order=order
        )

    @property
    def path_format(self) -> str:
        """The path with its parameters written `{name}`, whatever their kind."""
        return compile_path(self.path)[1]

    @property
    def handler(self) -> Handler:
        """It answers a request."""
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
        """Decorates the handler."""
        self._handler = handler
        return handler

    def is_served_by(self, execution: ExecutionConfig) -> bool:
        """Whether a model that is run this way serves it."""
        return execution.task in self.tasks and (execution.scores_relevance or not self.relevance)
