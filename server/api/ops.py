"""Endpoints about the daemon itself: models, health, version, metrics, status, the status page."""

from typing import Final

from fastapi import Request, Response
from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles

from engine_core.refusal import RefusalError
from server import __version__
from server.api.anthropic_models import ModelInfo, ModelPage, model_info, model_page
from server.api.declaration import answers
from server.errors import quoted
from server.http.anthropic_errors import is_anthropics
from server.http.gate import SlashRedirect
from server.schemas.common import Health, ModelCard, ModelList, Version
from server.schemas.status import Home, Status
from server.service.endpoint import Endpoint, Operation, operation
from server.service.service import Model, Registry, json_answer, record_of, service_of
from server.service.status_report import status_of

_MODEL = {"model": "Any name of the model, percent-encoded or not."}


@answers(Endpoint("GET", "/v1/models", "OpenAI", order=220))
async def list_models(request: Request) -> ModelList | ModelPage:
    """The models of this daemon, each under all its names, in the order of its configuration."""
    registry = service_of(request).registry
    if is_anthropics(request.scope):
        return model_page(registry)
    return ModelList(
        data=[_card(registry, model, name) for model in registry.models for name in model.names]
    )


@answers(
    Endpoint("GET", "/v1/models/{model:path}", "OpenAI", order=230),
    operation(ModelCard | ModelInfo, path=_MODEL),
)
async def get_model(request: Request) -> Response:
    """One model of this daemon. Its id may hold slashes, percent-encoded or not."""
    registry = service_of(request).registry
    name: str = request.path_params["model"]
    if not name or name.endswith("/"):
        # As it is done for paths that no pattern matches.
        return SlashRedirect(request.scope)
    shape = model_info if is_anthropics(request.scope) else _card
    return json_answer(shape(registry, registry.named(name), name))


def _card(registry: Registry, model: Model, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=registry.created,
        root=model.name,
        max_model_len=model.max_model_len,
        text_only=True if model.text_only else UNSET,
    )


@answers(Endpoint("GET", "/health/live", "Operations", order=240, needs_key=False))
async def live(request: Request) -> Health:
    """Whether every engine is alive, loading or about to be started again: a liveness probe."""
    record_of(request).is_probe = True
    for model in service_of(request).registry.models:
        model.check_alive()
    return Health()


@answers(Endpoint("GET", "/health", "Operations", order=250, needs_key=False))
async def ready(request: Request) -> Health:
    """Whether every model is ready, and new requests are taken: a readiness probe."""
    record_of(request).is_probe = True
    service_of(request).check_all_ready()
    return Health()


health_ready = ready.at("/health/ready", order=260)
ping = ready.at("/ping", order=265)


@answers(Endpoint("GET", "/version", "Operations", order=270))
async def version(_: Request) -> Version:
    """The daemon's version."""
    return Version(__version__)


@answers(
    Endpoint("GET", "/metrics", "Operations", order=280, needs_key="metrics_key"),
    Operation(arguments={"response_class": PlainTextResponse}),
)
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    record_of(request).is_probe = True
    return Response(await service_of(request).metrics.page(), media_type=CONTENT_TYPE_LATEST)


@answers(Endpoint("GET", "/status", "Operations", order=290), operation(Status))
async def status(request: Request) -> Response:
    """The daemon's state as JSON: models, load, counts since its start."""
    record_of(request).is_probe = True
    answer = json_answer(status_of(service_of(request)))
    answer.headers["cache-control"] = "no-store"
    return answer


# A page that loads files of its own address and no others, holds no script or style of its own,
# makes no markup of texts, and is in no other page's frame.
_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_PAGE_HEADERS: Final = {
    # Asked for anew each time, so that a daemon's files are of one release.
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_page_files = StaticFiles(packages=[("server.api", "status_page")])


@answers(Endpoint("GET", "/", "Operations", order=300, needs_key=False), operation(Home))
async def home(request: Request) -> Response:
    """Where to go from here: for browsers, which accept `text/html`, the status page. Neither needs
    an API key, or shows anything of models."""
    # The path is an endpoint of TEI, too, whose answers are counted apart.
    record_of(request).endpoint = page_file.path_format
    if "text/html" in request.headers.get("accept", ""):
        answer = await _page_file(request, "page.html")
    else:
        answer = json_answer(Home(needs_key=bool(service_of(request).config.api_keys)))
        answer.headers["cache-control"] = "no-store"
    answer.headers["vary"] = "accept"
    return answer


@answers(
    Endpoint("GET", "/status-page/{file}", order=310, needs_key=False),
    Operation(arguments={"include_in_schema": False}),
)
async def page_file(request: Request) -> Response:
    """A file of the status page."""
    return await _page_file(request, request.path_params["file"])


async def _page_file(request: Request, name: str) -> Response:
    try:
        answer = await _page_files.get_response(name, request.scope)
    except HTTPException:
        message = f"the status page has no file {quoted(name)}"
        raise RefusalError("not_found", message, "file") from None
    answer.headers.update(_PAGE_HEADERS)
    return answer
