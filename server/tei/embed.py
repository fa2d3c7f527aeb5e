"""`/embed`, `/embed_all`, `/embed_sparse` and `/similarity`."""

import numpy as np
from fastapi import Request, Response

from engine_core.client.pending_jobs import FloatArray
from engine_core.refusal import RefusalError
from server.api.embeddings import EMBEDDINGS
from server.encoding.embedding_plan import EmbeddingPlan, embedding_plan, planned_vectors
from server.encoding.encode import encode
from server.encoding.relevance import Pairs, relevance
from server.encoding.text_prompts import behind_prompt, text_prompt
from server.encoding.vector_json import in_lists, rows_in_json
from server.http.body import Body, CancelOnDisconnect
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.tei import (
    EmbedRequest,
    EmbedTokensRequest,
    SimilarityParameters,
    SimilarityRequest,
    SparseValue,
)
from server.service.endpoint import Endpoint
from server.service.inputs import check_count, text_items
from server.service.service import Model, json_answer, record_of, service_of
from server.settings.settings import Limits
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
    service = service_of(request)
    body = await _embed_body.read(request)
    model = the_embedder(request, body.model)
    plan = _plan(
        body, model, service.limits, body.dimensions, normalize=body.normalize is not False
    )
    with CancelOnDisconnect(request.receive):
        encoded = await planned_vectors(request, model, plan)
        return json_answer(encoded.values.tolist())


@EMBED_SPARSE.answered_by
@tei_errors
async def embed_sparse(request: Request) -> Response:
    """The nonzero entries of the vector of each text, which has the size of the vocabulary."""
    service = service_of(request)
    body = await _tokens_body.read(request)
    model = the_sparse_embedder(request, body.model)
    plan = _plan(body, model, service.limits)
    with CancelOnDisconnect(request.receive):
        encoded = await encode(request, model, plan.items, plan.options)
        rows = np.split(encoded.values, np.cumsum(encoded.counts)[:-1])
        return json_answer(await rows_in_json(rows, _sparse_values))


@EMBED_ALL.answered_by
@tei_errors
async def embed_all(request: Request) -> Response:
    """The last hidden state of each token of each text, special tokens included."""
    service = service_of(request)
    body = await _tokens_body.read(request)
    model = the_embedder(request, body.model)
    plan = _plan(body, model, service.limits)
    with CancelOnDisconnect(request.receive):
        encoded = await encode(request, model, plan.items, plan.options, token_states=True)
        rows = np.split(encoded.values, np.cumsum(encoded.prompt_tokens)[:-1])
        return json_answer(await rows_in_json(rows, in_lists))


@SIMILARITY.answered_by
@tei_errors
async def similarity(request: Request) -> Response:
    """The similarity of a sentence to other sentences: the cosine of their vectors, unless the
    model's checkpoint names another."""
    service = service_of(request)
    body = await _similarity_body.read(request)
    model = the_embedder(request, body.model)
    sentences = body.inputs.sentences
    if not sentences:
        raise empty_batch("inputs.sentences")
    check_count(len(sentences), "inputs.sentences", service.limits.max_inputs)
    options = body.parameters or SimilarityParameters()
    prompt = text_prompt(model, options.prompt_name, None)
    cut = behind_prompt(whole_cut(model, options), model, prompt)
    pairs = Pairs(
        queries=text_items(prompt + body.inputs.source_sentence, "inputs.source_sentence"),
        texts=text_items([prompt + sentence for sentence in sentences], "inputs.sentences"),
        cut_queries=cut,
        cut_texts=cut,
    )
    with CancelOnDisconnect(request.receive):
        return json_answer((await relevance(request, model, pairs)).scores.tolist())


def the_embedder(request: Request, name: str | None = None) -> Model:
    """The one of that name, or the only one. Raises RefusalError if there is none, or several."""
    service = service_of(request)
    has = service.registry.has_task
    if name is None and has("embed_sparse") and not has("embed"):
        raise RefusalError("wrong_endpoint", "Model has SPLADE pooling: it serves `/embed_sparse`")
    return service.find(record_of(request), name, EMBEDDINGS)


def the_sparse_embedder(request: Request, name: str | None = None) -> Model:
    """The one of that name, or the only one. Raises RefusalError if there is none, in TEI's words,
    or several."""
    service = service_of(request)
    if name is None and not service.registry.has_task("embed_sparse"):
        message = "Model is not an embedding model with SPLADE pooling"
        raise RefusalError("wrong_endpoint", message)
    return service.find(record_of(request), name, EMBED_SPARSE)


def _plan(
    body: EmbedTokensRequest,
    model: Model,
    limits: Limits,
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
        truncation_side=side(body),
    )
    return embedding_plan(request, model, limits, field="inputs")


def _sparse_values(entries: FloatArray) -> list[SparseValue]:
    indices, values = entries[:, 0].astype(int).tolist(), entries[:, 1].tolist()
    return [SparseValue(*entry) for entry in zip(indices, values, strict=True)]
