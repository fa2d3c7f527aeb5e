"""What operators ask: models, health, version, metrics."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from server import __version__
from server.http.openapi import operation
from server.schemas.common import Health, ModelCard, ModelList, Version
from server.service.registry import Model, Registry
from server.service.service import json_answer, service_of

router = APIRouter()

_BY_ID = {
    "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
}


@router.get("/v1/models", **operation(ModelList))
async def list_models(request: Request) -> Response:
    """The models of this daemon, each under all its names, in the order of its configuration."""
    registry = service_of(request).registry
    return json_answer(
        ModelList(
            data=[_card(registry, model, name) for model in registry.models for name in model.names]
        )
    )


@router.get("/v1/models/{model:path}", **operation(ModelCard), openapi_extra=_BY_ID)
async def get_model(request: Request) -> Response:
    """One model of this daemon. Its id may hold slashes, percent-encoded or not."""
    registry = service_of(request).registry
    name: str = request.path_params["model"]
    return json_answer(_card(registry, registry.named(name), name))


def _card(registry: Registry, model: Model, name: str) -> ModelCard:
    return ModelCard(id=name, created=registry.created, max_model_len=model.max_model_len)


@router.get("/health/live", **operation(Health))
async def live(request: Request) -> Response:
    """Whether every engine lives, or is still loading: a liveness probe."""
    for model in service_of(request).registry.models:
        model.check_alive()
    return json_answer(Health())


@router.get("/health", **operation(Health))
@router.get("/health/ready", **operation(Health))
async def ready(request: Request) -> Response:
    """Whether every model can be asked, and new requests are taken: a readiness probe."""
    service = service_of(request)
    service.check(service.registry.models)
    for model in service.registry.models:
        model.chat.check()
    return json_answer(Health())


@router.get("/version", **operation(Version))
async def version(_: Request) -> Response:
    """The daemon's version."""
    return json_answer(Version(__version__))


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(service_of(request).metrics.page(), media_type=CONTENT_TYPE_LATEST)
