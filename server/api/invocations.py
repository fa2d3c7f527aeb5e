"""`/invocations`: SageMaker's one path for every request, as vLLM serves it."""

from functools import reduce

from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.api.chat import create_chat_completion
from server.api.classify import create_classifications
from server.api.completions import create_completion
from server.api.declaration import answers
from server.api.embeddings import create_embeddings
from server.api.pooling import create_poolings
from server.api.relevance import create_reranking, create_scores
from server.http.body import fields_of, text_in
from server.service.endpoint import Endpoint, operation
from server.service.service import Registry, service_of

_FORMS = (
    (create_chat_completion, ("messages",)),
    (create_completion, ("prompt",)),
    (create_poolings, ("input", "task")),
    (create_embeddings, ("input",)),
    (create_embeddings, ("messages",)),
    (create_classifications, ("input",)),
    (create_classifications, ("messages",)),
    (create_scores, ("text_1", "text_2")),
    (create_scores, ("queries", "documents")),
    (create_reranking, ("query", "documents")),
)
"""The endpoints in vLLM's order, with the fields by which their bodies are known. Where several
have them, the first that the model serves is meant. `/pooling` is vLLM's last, which none reaches.
"""

_TYPES = [form.operation.types for form, _ in _FORMS]
_ANSWERS, _BODIES, _CHUNKS = (
    reduce(lambda one, other: one | other, [of[number] for of in _TYPES if of[number]])
    for number in range(3)
)


@answers(
    Endpoint("POST", "/invocations", "Jina, vLLM", order=215),
    operation(_ANSWERS, _BODIES, chunk=_CHUNKS),
)
async def invoke(request: Request) -> Response:
    """Answer as the endpoint does to which the body belongs by its fields. It may be that of chat,
    completions, embeddings, classification, scores, reranking or pooling. Streams are, too."""
    fields = await fields_of(request)
    fitting = [form for form, names in _FORMS if fields.keys() >= set(names)]
    if not fitting:
        known = "; ".join(" and ".join(names) for _, names in _FORMS)
        message = f"the body is not a JSON object with the fields of an endpoint: {known}"
        raise RefusalError("invalid_request", message)
    registry, model = service_of(request).registry, text_in(fields, "model")
    served = (form for form in fitting if _serves(registry, model, form))
    return await next(served, fitting[0]).handler(request)


def _serves(registry: Registry, model: str | None, form: Endpoint) -> bool:
    """Whether the model that is meant serves `form`, or is not found there for another reason."""
    try:
        registry.find(model, form)
    except RefusalError as error:
        return error.code != "wrong_endpoint"
    return True
