"""`/v1/embed` and `/v2/embed`: a vector for each text, in one type or several."""

from typing import Annotated, Literal

import msgspec
import numpy as np
from fastapi import Request
from msgspec import Meta, Raw

from engine_core.client.pending_jobs import FloatArray
from engine_core.refusal import RefusalError
from server.api.declaration import answers
from server.api.embeddings import (
    AnyArray,
    EmbeddingPlan,
    create_embeddings,
    embedding_plan,
    in_base64,
    in_lists,
    planned_vectors,
    quantize,
    rows_in_json,
)
from server.api.relevance import cut_warnings
from server.schemas.common import Count, Int64, invalid, renamed
from server.schemas.embeddings import EmbeddingRequest, InputType, Vector
from server.schemas.rerank import APIVersion, InputTokens
from server.service.inputs import check_count
from server.service.service import Model, service_of
from server.settings.settings import Limits

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class EmbedPart(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["text"]
    """Always `text`."""
    text: str
    """The text."""


class EmbedInput(msgspec.Struct, frozen=True, kw_only=True):
    content: Annotated[list[EmbedPart], Meta(min_length=1)]
    """The parts of the text, of type `text`; several are joined by line breaks."""


class CohereEmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `/v1/embed` or `/v2/embed`: `texts`, or `inputs` in parts."""

    """Example: {"embedding_types": ["int8", "ubinary"], "input_type": "search_query", "model":
    "all-MiniLM-L6-v2", "texts": ["The cat sat on the mat."]}"""

    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    """At least one, none empty; over 2048: `too_large`. Default: this or `inputs`."""
    inputs: Annotated[list[EmbedInput], Meta(min_length=1)] | None = None
    """As `texts`, of parts joined by line breaks; other parts, such as images, get 400 with
    `inputs[i].content[j].type` as `param`. Default: this or `texts`."""
    model: str | None = None
    """A name of the model. Default: [the only one that fits](#rules-for-every-request)."""
    input_type: InputType | None = None
    """`search_query`, `search_document`, `classification` or `clustering`: [the prompt](#prompts),
    if the model has one for it."""
    embedding_types: Annotated[list[EmbeddingType], Meta(min_length=1)] | None = None
    """At least one of the types below. Default: `["float"]`."""
    output_dimension: Count | None = None
    """As `dimensions` of [embeddings](#dimensions-and-types). Default: the model's."""
    truncate: Literal["NONE", "START", "END"] | None = None
    """Where a too long text loses tokens: `START`, `END`; `NONE`: it gets 400. Default: `"END"`."""
    max_tokens: Count | None = None
    """1 to 2³¹ − 1: the tokens that texts keep, special ones included; not with `truncate` `NONE`.
    Default: the model's length."""
    priority: Int64 | None = None
    """Within [the server's range](#priorities): the lowest waiting is computed first. Default:
    0."""


class EmbedUnits(InputTokens, frozen=True, kw_only=True):
    """Tokens that are billed."""

    image_tokens: int = 0
    """Always 0: images are not embedded."""


class EmbedMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    api_version: APIVersion
    """The version in the request's path."""
    billed_units: EmbedUnits
    """Tokens that were read."""
    warnings: list[str] = []
    """A line for each text that lost tokens."""


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: a vector for each text, in order. By type, each type has such a list."""

    id: str
    """Unique name of the request."""
    response_type: Literal["embeddings_floats", "embeddings_by_type"]
    """`embeddings_floats`, or `embeddings_by_type` where `embeddings` has a list for each type."""
    embeddings: list[Vector] | dict[EmbeddingType, list[Vector]]
    """The vectors, in the order of the texts."""
    texts: list[str]
    """The texts of the request."""
    meta: EmbedMeta
    """Version, units and warnings."""


@answers(create_embeddings.at("/v1/embed", "Cohere", order=31))
async def embed(request: Request, body: CohereEmbedRequest, model: Model) -> CohereEmbeddings:
    """Embed texts as Cohere does: too long ones are cut unless `truncate` is NONE."""
    service = service_of(request)
    texts, field = _given_texts(body)
    plan = _plan(body, texts, field, model, service.limits)
    version = APIVersion.of(request.url.path)
    encoded = await planned_vectors(request, model, plan)
    one_type = version.version == "1" and body.embedding_types is None
    by_type: dict[EmbeddingType, list[Raw]] = {
        kind: await rows_in_json(
            _of_type(encoded.values, kind), in_base64 if kind == "base64" else in_lists
        )
        for kind in body.embedding_types or ("float",)
    }
    return CohereEmbeddings(
        id=service.new_id("embed"),
        response_type="embeddings_floats" if one_type else "embeddings_by_type",
        embeddings=by_type["float"] if one_type else by_type,
        texts=texts,
        meta=EmbedMeta(
            api_version=version,
            billed_units=EmbedUnits(input_tokens=sum(encoded.prompt_tokens)),
            warnings=cut_warnings(plan.items, encoded.dropped),
        ),
    )


embed_v2 = embed.at("/v2/embed", order=32)


def _given_texts(body: CohereEmbedRequest) -> tuple[list[str], str]:
    """The texts to embed, and their field. Raises RefusalError unless there is one such field."""
    if body.texts is not None and body.inputs is not None:
        raise invalid("inputs", "`texts` are given too; give only one of them")
    if body.texts is not None:
        return body.texts, "texts"
    if body.inputs is None:
        raise invalid("texts", "this or `inputs` is required")
    return ["\n".join(part.text for part in item.content) for item in body.inputs], "inputs"


def _plan(
    body: CohereEmbedRequest, texts: list[str], field: str, model: Model, limits: Limits
) -> EmbeddingPlan:
    """Plan a request of `/v1/embeddings` with inputs in `field`. Raises RefusalError."""
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
        return embedding_plan(request, model, limits, field)
    except RefusalError as error:
        raise renamed(error, "truncation_side", "truncate") from None


def _longest(body: CohereEmbedRequest, model_len: int) -> int | None:
    """The tokens to which an input is cut, None for not at all. Raises RefusalError."""
    if body.truncate != "NONE":
        return min(body.max_tokens or model_len, model_len)
    if body.max_tokens is not None:
        raise invalid("max_tokens", "is where an input is cut; with `truncate` NONE none is")
    return None


def _of_type(vectors: FloatArray, kind: EmbeddingType) -> AnyArray:
    """The numbers of a type: base64 is written of floats, uint8 is int8 plus 128."""
    match kind:
        case "float" | "base64":
            return vectors
        case "uint8":
            return (quantize(vectors, "int8").astype(np.int16) + 128).astype(np.uint8)
        case "int8" | "binary" | "ubinary":
            return quantize(vectors, kind)
