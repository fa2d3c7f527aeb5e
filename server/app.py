"""The application factory: routes, error answers, life cycle."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from engine_core.client_jobs import EngineError
from server import __version__
from server.api import completions, embeddings, ops, rerank, tokenize
from server.errors import APIError
from server.gate import Gate, error_answer
from server.openapi import describe
from server.service import Service

_ROUTERS = (completions.router, embeddings.router, rerank.router, tokenize.router, ops.router)


def create_app(service: Service) -> FastAPI:
    """The HTTP application around `service`; its lifespan holds the connections to the engines."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await service.registry.start()
        yield
        service.registry.close()

    app = FastAPIOffline(
        title="penstock",
        version=__version__,
        description="Completions, embeddings and reranking in OpenAI's shapes.",
        lifespan=lifespan,
        routes=[route for router in _ROUTERS for route in router.routes],
        # ReDoc loads its logo from the internet.
        redoc_url=None,
        # Swagger UI would otherwise send the description to a validator on the internet.
        swagger_ui_parameters={"validatorUrl": None},
    )
    app.state.service = service
    endpoints = frozenset(
        route.path for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)
    )
    app.add_middleware(Gate, service=service, endpoints=endpoints)
    app.add_exception_handler(APIError, _on_api_error)
    app.add_exception_handler(EngineError, _on_engine_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    describe(app)
    return app


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return error_answer(error)


async def _on_engine_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return error_answer(APIError.from_engine(error))


async def _on_http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return error_answer(APIError.from_status(error.status_code, headers))
