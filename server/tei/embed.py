"""`/embed`, `/embed_all`, `/embed_sparse` and `/similarity`."""

import asyncio
from collections.abc import Callable

import msgspec
from fastapi import Request, Response
from msgspec import Raw

from engine_core.client.encode_calls import Encoded
from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import JobOptions
from engine_core.refusal import RefusalError
from server.api.embeddings import EMBEDDINGS
from server.encoding.embedding_plan import EmbeddingPlan, embedding_plan
from server.encoding.encode import encode
from server.encoding.relevance import Pairs, relevance
from server.encoding.row_names import item_names
from server.encoding.text_prompts import behind_prompt, text_prompt
from server.encoding.vectors import shorten
from server.http.body import Body, whole_body
from server.http.disconnect import CancelOnDisconnect
from server.metrics.request_record import RequestRecord, record_of
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.tei import (
    EmbedRequest,
    EmbedTokensRequest,
    SimilarityParameters,
    SimilarityRequest,
    SparseValue,
)
from server.service.endpoint import Endpoint
from server.service.inputs import check_count
from server.service.registry import Model
from server.service.service import Service, json_answer, service_of
from server.tei.operations import tei_operation
from server.tei.tei_errors import empty_batch, tei_errors
from server.tei.text_limit import side, whole_cut

EMBED = Endpoint(
    "POST",
    "/embed",
    tei_operation(list[list[float]], body=EmbedRequest),
    variant_of=EMBEDDINGS,
    order=70,
)
EMBED_SPARSE = Endpoint(
    "POST",
    "/embed_sparse",
    tei_operation(list[list[SparseValue]], body=EmbedTokensRequest),
    tasks=("embed_sparse",),
    order=80,
)
EMBED_ALL = Endpoint(
    "POST",
    "/embed_all",
    tei_operation(list[list[list[float]]], body=EmbedTokensRequest),
    variant_of=EMBEDDINGS,
    order=90,
)
SIMILARITY = Endpoint(
    "POST",
    "/similarity",
    tei_operation(list[float], body=SimilarityRequest),
    variant_of=EMBEDDINGS,
    order=100,
)
_embed_body = Body(EmbedRequest)
_tokens_body = Body(EmbedTokensRequest)
_similarity_body = Body(SimilarityRequest)


@EMBED.answered_by
@tei_errors
async def embed(request: Request) -> Response:
    """A vector for each text, of length 1 unless `normalize` is false."""
    return await answer_embed(request, await whole_body(request))


async def answer_embed(request: Request, raw: bytes) -> Response:
    """The answer to a body. Raises RefusalError."""
    service, record = service_of(request), record_of(request)
    body = _embed_body.decode(raw, strictly=service.config.strict_fields)
    model = the_embedder(service, record, body.model)
    plan = _plan(body, model, service, body.dimensions, normalize=body.normalize is not False)
    with CancelOnDisconnect(request.receive):
        name = item_names("inputs", body.inputs)
        encoded = await _encoded(service, record, model, plan, name)
        vectors = shorten(encoded.values, plan.dimensions, normalize=plan.normalize)
        return json_answer(vectors.tolist())


@EMBED_SPARSE.answered_by
@tei_errors
async def embed_sparse(request: Request) -> Response:
    """The nonzero entries of the vector of each text, which has the size of the vocabulary."""
    return await answer_embed_sparse(request, await whole_body(request))


async def answer_embed_sparse(request: Request, raw: bytes) -> Response:
    """The answer to a body. Raises RefusalError."""
    service, record = service_of(request), record_of(request)
    body = _tokens_body.decode(raw, strictly=service.config.strict_fields)
    model = the_sparse_embedder(service, record, body.model)
    plan = _plan(body, model, service)
    with CancelOnDisconnect(request.receive):
        name = item_names("inputs", body.inputs)
        encoded = await _encoded(service, record, model, plan, name)
        return json_answer(await _in_json(encoded, _sparse_values))


@EMBED_ALL.answered_by
@tei_errors
async def embed_all(request: Request) -> Response:
    """The last hidden state of each token of each text, special tokens included."""
    service, record = service_of(request), record_of(request)
    body = await _tokens_body.read(request, service.limits.max_body_bytes)
    model = the_embedder(service, record, body.model)
    plan = _plan(body, model, service)
    with CancelOnDisconnect(request.receive):
        name = item_names("inputs", body.inputs)
        encoded = await _encoded(service, record, model, plan, name, token_states=True)
        return json_answer(await _in_json(encoded, _lists))


@SIMILARITY.answered_by
@tei_errors
async def similarity(request: Request) -> Response:
    """The similarity of a sentence to other sentences: the cosine of their vectors, unless the
    model's checkpoint names another."""
    service, record = service_of(request), record_of(request)
    body = await _similarity_body.read(request, service.limits.max_body_bytes)
    model = the_embedder(service, record, body.model)
    sentences = body.inputs.sentences
    if not sentences:
        raise empty_batch("inputs.sentences")
    check_count(len(sentences), "inputs.sentences", service.limits.max_inputs)
    parameters = body.parameters or SimilarityParameters()
    prompt = text_prompt(model, parameters.prompt_name, None)
    cut = whole_cut(model, truncate=parameters.truncate, direction=parameters.truncation_direction)
    cut = behind_prompt(cut, model, prompt)
    pairs = Pairs(
        queries=[prompt + body.inputs.source_sentence],
        texts=[prompt + sentence for sentence in sentences],
        query_name=lambda _: "inputs.source_sentence",
        text_name=lambda index: f"inputs.sentences[{index}]",
        cut_queries=cut,
        cut_texts=cut,
    )
    with CancelOnDisconnect(request.receive):
        return json_answer((await relevance(service, record, model, pairs)).scores.tolist())


def the_embedder(service: Service, record: RequestRecord, name: str | None = None) -> Model:
    """The one of that name, or the only one. Raises RefusalError if there is none, or several."""
    has = service.registry.has_task
    if name is None and has("embed_sparse") and not has("embed"):
        raise RefusalError("wrong_endpoint", "Model has SPLADE pooling: it serves `/embed_sparse`")
    return service.find(record, name, EMBEDDINGS)


def the_sparse_embedder(service: Service, record: RequestRecord, name: str | None = None) -> Model:
    """The one of that name, or the only one. Raises RefusalError if there is none, in TEI's words,
    or several."""
    if name is None and not service.registry.has_task("embed_sparse"):
        message = "Model is not an embedding model with SPLADE pooling"
        raise RefusalError("wrong_endpoint", message)
    return service.find(record, name, EMBED_SPARSE)


def _plan(
    body: EmbedRequest | EmbedTokensRequest,
    model: Model,
    service: Service,
    dimensions: int | None = None,
    *,
    normalize: bool | None = None,
) -> EmbeddingPlan:
    """`body` as a request of `/v1/embeddings`. Raises RefusalError."""
    if body.inputs == []:
        raise empty_batch("inputs")
    request = EmbeddingRequest(
        input=body.inputs,
        dimensions=dimensions,
        normalize=normalize,
        prompt_name=body.prompt_name,
        truncation=body.truncate,
        truncation_side=side(body.truncation_direction),
    )
    return embedding_plan(request, model, service.limits)


async def _encoded(
    service: Service,
    record: RequestRecord,
    model: Model,
    plan: EmbeddingPlan,
    name: Callable[[int], str],
    *,
    token_states: bool = False,
) -> Encoded:
    options = JobOptions(tokenization=plan.tokenization)
    return await encode(
        service, record, model, plan.items, token_states=token_states, options=options, name=name
    )


async def _in_json(encoded: Encoded, convert: Callable[[FloatArray], object]) -> list[Raw]:
    """The values of each item, as JSON. Other requests run in between: the answers are large."""
    items: list[Raw] = []
    first = 0
    for count in encoded.counts:
        own = encoded.values[first : first + count]
        items.append(Raw(msgspec.json.encode(convert(own))))
        first += count
        await asyncio.sleep(0)
    return items


def _lists(vectors: FloatArray) -> list[list[float]]:
    return vectors.tolist()


def _sparse_values(entries: FloatArray) -> list[SparseValue]:
    indices, values = entries[:, 0].astype(int).tolist(), entries[:, 1].tolist()
    return [SparseValue(*entry) for entry in zip(indices, values, strict=True)]
