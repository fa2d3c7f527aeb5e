"""A request of `/v1/embed` or `/v2/embed`, once it has been checked."""

from dataclasses import replace

from engine_core.refusal import RefusalError
from server.encoding.embedding_plan import EmbeddingPlan, embedding_plan
from server.encoding.row_names import item_names, renamed
from server.schemas.cohere.embed_request import CohereEmbedRequest
from server.schemas.embeddings import EmbeddingRequest
from server.service.inputs import check_count
from server.service.registry import Model
from server.settings.limits import Limits


def given_texts(body: CohereEmbedRequest) -> tuple[list[str], str]:
    """The texts to embed, and the field that holds them. Raises RefusalError unless one field
    does."""
    if body.texts is not None and body.inputs is not None:
        message = "inputs: `texts` are given too; give only one of them"
        raise RefusalError("invalid_request", message, "inputs")
    if body.texts is not None:
        return body.texts, "texts"
    if body.inputs is None:
        raise RefusalError("invalid_request", "texts: this or `inputs` is required", "texts")
    return ["\n".join(part.text for part in item.content) for item in body.inputs], "inputs"


def cohere_embedding_plan(
    body: CohereEmbedRequest, texts: list[str], field: str, model: Model, limits: Limits
) -> EmbeddingPlan:
    """The request as one of `/v1/embeddings`; `field` holds its `texts`. Raises RefusalError."""
    check_count(len(texts), field, limits.max_inputs)
    request = EmbeddingRequest(
        input=[*texts],
        input_type=body.input_type,
        output_dimension=body.output_dimension,
        truncate_prompt_tokens=_longest(body, model.max_model_len),
        truncation_side="left" if body.truncate == "START" else "right",
        priority=body.priority,
    )
    try:
        return embedding_plan(request, model, limits)
    except RefusalError as error:
        if error.param == "truncation_side":
            message = error.message.replace("truncation_side", "truncate", 1)
            raise replace(error, message=message, param="truncate") from None
        raise renamed(error, item_names(field, texts)) from None


def _longest(body: CohereEmbedRequest, model_len: int) -> int | None:
    """The tokens to which an input is cut, None for not at all. Raises RefusalError."""
    if body.truncate != "NONE":
        return min(body.max_tokens or model_len, model_len)
    if body.max_tokens is not None:
        message = "max_tokens: is where an input is cut; with `truncate` NONE none is"
        raise RefusalError("invalid_request", message, "max_tokens")
    return None
