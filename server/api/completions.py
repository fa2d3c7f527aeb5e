"""`/v1/completions`: text that continues a prompt."""

from fastapi import Request, Response

from engine_core.messages import SamplingParams
from engine_core.refusal import RefusalError
from server.generation.completion.completion_choices import CompletionForm
from server.generation.generation import generate
from server.generation.plan import GenerationPlan, check_choices, choices, generation_plan
from server.generation.requested_sampling import sampling_params
from server.generation.stream import answer
from server.http.body import Body, CancelOnDisconnect
from server.schemas.completions import Completion, CompletionRequest
from server.schemas.field_names import value_under_any_name
from server.service.endpoint import Endpoint, operation
from server.service.inputs import parse_items
from server.service.service import Model, record_of, service_of
from server.settings.settings import Limits

DEFAULT_MAX_TOKENS = 16

COMPLETIONS = Endpoint(
    "POST",
    "/v1/completions",
    operation(Completion, CompletionRequest, chunk=Completion),
    tasks=("generate",),
    order=10,
)
_body = Body(CompletionRequest)


@COMPLETIONS.answered_by
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts, in one answer or as a stream of server-sent events."""
    service = service_of(request)
    body = await _body.read(request)
    model = service.find(record_of(request), body.model, COMPLETIONS, body.priority or 0)
    plan = completion_plan(body, model, service.limits)
    form = CompletionForm(body, model, service.new_id("cmpl"))
    with CancelOnDisconnect(request.receive):
        return await answer(generate(request, model, plan), form, stream=body.stream)


def completion_plan(body: CompletionRequest, model: Model, limits: Limits) -> GenerationPlan:
    """The request, checked and with the model's own defaults in it. Raises RefusalError."""
    width = _best_of(body, limits)
    return generation_plan(
        body,
        model,
        prompts=parse_items(body.prompt, "prompt", model, limits.max_inputs),
        params=_params(body, model, ranked=width > (body.n or 1)),
        width=width,
        logprobs=body.logprobs,
        echo=bool(body.echo),
        add_special_tokens=body.add_special_tokens is not False,
    )


def _params(body: CompletionRequest, model: Model, *, ranked: bool) -> SamplingParams:
    """Choices are `ranked` by their tokens' log-probabilities, which the engine then reports."""
    scored = [body.logprobs if body.echo else None, body.prompt_logprobs]
    return sampling_params(
        body,
        model,
        max_tokens=_max_tokens(body),
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=0 if ranked and body.logprobs is None else body.logprobs,
        prompt_logprobs=max((width for width in scored if width is not None), default=None),
    )


def _max_tokens(body: CompletionRequest) -> int | None:
    """Raises RefusalError for two numbers."""
    newer, older = body.max_completion_tokens, body.max_tokens
    return value_under_any_name(("max_tokens", older), ("max_completion_tokens", newer))


def _best_of(body: CompletionRequest, limits: Limits) -> int:
    """How many choices of each prompt are generated. Raises RefusalError."""
    n = choices(body, limits)
    best_of = n if body.best_of is None else body.best_of
    check_choices(best_of, "best_of", limits)
    if best_of < n:
        raise RefusalError("invalid_request", f"best_of: {best_of} is less than n, {n}", "best_of")
    if best_of > n and body.stream:
        raise RefusalError("invalid_request", "best_of: at most n with `stream`", "best_of")
    return best_of
