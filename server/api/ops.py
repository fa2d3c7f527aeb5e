"""Endpoints for operators: models, health, version, metrics, status."""

from fastapi import Request, Response
from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse

from server import __version__
from server.http.gate import SlashRedirect
from server.schemas.common import Health, ModelCard, ModelList, Version
from server.schemas.status import Status
from server.service.endpoint import Endpoint, Operation, operation
from server.service.service import Model, Registry, json_answer, record_of, service_of
from server.service.status_report import status_of

_MODEL = {"model": "Any name of the model, percent-encoded or not."}
LIST_MODELS = Endpoint("GET", "/v1/models", operation(ModelList), order=220)
GET_MODEL = Endpoint("GET", "/v1/models/{model:path}", operation(ModelCard, path=_MODEL), order=230)
LIVE = Endpoint("GET", "/health/live", operation(Health), order=240, needs_key=False)
HEALTH = Endpoint("GET", "/health", operation(Health), order=250, needs_key=False)
READY = Endpoint("GET", "/health/ready", operation(Health), order=260, needs_key=False)
VERSION = Endpoint("GET", "/version", operation(Version), order=270)
METRICS = Endpoint(
    "GET",
    "/metrics",
    Operation(arguments={"response_class": PlainTextResponse}),
    order=280,
    needs_key="metrics_key",
)
STATUS = Endpoint("GET", "/status", operation(Status), order=290)


@LIST_MODELS.answered_by
async def list_models(request: Request) -> Response:
    """The models of this daemon, each under all its names, in the order of its configuration."""
    registry = service_of(request).registry
    return json_answer(
        ModelList(
            data=[_card(registry, model, name) for model in registry.models for name in model.names]
        )
    )


@GET_MODEL.answered_by
async def get_model(request: Request) -> Response:
    """One model of this daemon. Its id may hold slashes, percent-encoded or not."""
    registry = service_of(request).registry
    name: str = request.path_params["model"]
    if not name or name.endswith("/"):
        # As it is done for paths that no pattern matches.
        return SlashRedirect(request.scope)
    return json_answer(_card(registry, registry.named(name), name))


def _card(registry: Registry, model: Model, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=registry.created,
        max_model_len=model.max_model_len,
        text_only=True if model.text_only else UNSET,
    )


@LIVE.answered_by
async def live(request: Request) -> Response:
    """Whether every engine is alive, or still loading: a liveness probe."""
    record_of(request).is_probe = True
    for model in service_of(request).registry.models:
        model.check_alive()
    return json_answer(Health())


@HEALTH.answered_by
@READY.answered_by
async def ready(request: Request) -> Response:
    """Whether every model is ready, and new requests are taken: a readiness probe."""
    record_of(request).is_probe = True
    service = service_of(request)
    service.check(service.registry.models)
    for model in service.registry.models:
        model.chat.check()
    return json_answer(Health())


@VERSION.answered_by
async def version(_: Request) -> Response:
    """The daemon's version."""
    return json_answer(Version(__version__))


@METRICS.answered_by
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    record_of(request).is_probe = True
    return Response(await service_of(request).metrics.page(), media_type=CONTENT_TYPE_LATEST)


@STATUS.answered_by
async def status(request: Request) -> Response:
    """The daemon's state as JSON: models, load, counts since its start."""
    record_of(request).is_probe = True
    answer = json_answer(status_of(service_of(request)))
    answer.headers["cache-control"] = "no-store"
    return answer
