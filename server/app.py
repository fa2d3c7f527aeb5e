"""The application factory: the endpoints behind their gate, the documentation, the life cycle."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from server import __version__
from server.api import completions, embeddings, ops, rerank, tokenize
from server.errors import APIError
from server.gate import Gate, error_answer
from server.openapi import describe
from server.service import Service

_ROUTERS = (completions.router, embeddings.router, rerank.router, tokenize.router, ops.router)


def create_app(service: Service) -> Gate:
    """The HTTP application around `service`; its lifespan holds the connections to the engines.

    FastAPI describes the endpoints, serves the documentation and answers what is no endpoint.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await service.registry.start()
        yield
        service.registry.close()

    routes = [route for router in _ROUTERS for route in router.routes]
    app = FastAPIOffline(
        title="penstock",
        version=__version__,
        description="Completions, embeddings and reranking in OpenAI's shapes.",
        lifespan=lifespan,
        routes=routes,
        # ReDoc loads its logo from the internet.
        redoc_url=None,
        # Swagger UI would otherwise send the description to a validator on the internet.
        swagger_ui_parameters={"validatorUrl": None},
    )
    app.add_exception_handler(HTTPException, _on_http_exception)
    describe(app)
    handlers = {
        (method, route.path): route.endpoint
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    return Gate(service, handlers, others=app)


async def _on_http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return error_answer(APIError.from_status(error.status_code, headers))
