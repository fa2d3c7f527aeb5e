"""The application factory: the endpoints behind their gate, the documentation, the life cycle."""

import importlib
import pkgutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import get_args

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp

import server.api
from engine_core.refusal import RefusalError
from server import __version__
from server.api.responses.websocket import SOCKET_PATH, ResponseSocket
from server.errors import INTERNAL
from server.http.answers import ErrorAnswer
from server.http.gate import Gate, RouteTable, redirect_slashes, with_cors
from server.http.openapi import describe, route_of
from server.http.unknown_paths import UnknownPaths
from server.service.endpoint import Endpoint, Tag
from server.service.service import Service


def create_app(service: Service) -> ASGIApp:
    """The HTTP application around `service`, which connects to the engines while it lives."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await service.start()
        yield
        await service.registry.close()

    endpoints = service.registry.endpoints
    own_routes = [*map(route_of, endpoints)]
    app = FastAPIOffline(
        title="penstock",
        version=__version__,
        description="Completions, embeddings, reranking and classification.",
        lifespan=lifespan,
        routes=own_routes,
        # ReDoc loads its logo from the internet.
        redoc_url=None,
        openapi_tags=[{"name": tag} for tag in get_args(Tag)],
        # Swagger UI would otherwise send the description to a validator on the internet. The list
        # of schemas, which follows the endpoints, is folded.
        swagger_ui_parameters={"validatorUrl": None, "defaultModelsExpandDepth": 0},
    )
    app.add_exception_handler(HTTPException, partial(_on_http_exception, UnknownPaths(endpoints)))
    app.add_exception_handler(Exception, _on_exception)
    redirect_slashes(app)
    describe(app, endpoints)
    gate = Gate(service, RouteTable(own_routes), others=app)
    app.router.routes.append(WebSocketRoute(SOCKET_PATH, ResponseSocket(service, gate)))
    return with_cors(gate, service.config.cors_origins, service.access_log)


async def _on_http_exception(unknown: UnknownPaths, request: Request, error: Exception) -> Response:
    """Answer for starlette: nothing is at a path, or not by this method."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    refusal = RefusalError("method_not_allowed", status.phrase)
    if status == HTTPStatus.NOT_FOUND:
        refusal = unknown.refusal(request.method, request.scope["path"])
    return ErrorAnswer(refusal, headers=error.headers)


async def _on_exception(_: Request, error: Exception) -> Response:
    return ErrorAnswer(INTERNAL, cause=error)


def all_endpoints() -> tuple[Endpoint, ...]:
    """In the order of the documentation. The modules are found by listing the package."""
    found: dict[Endpoint, None] = {}
    for module in pkgutil.walk_packages(server.api.__path__, "server.api."):
        declared = vars(importlib.import_module(module.name)).values()
        found |= dict.fromkeys(value for value in declared if isinstance(value, Endpoint))
    return tuple(sorted(found, key=lambda endpoint: endpoint.order))
