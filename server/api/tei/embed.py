"""`/embed`, `/embed_all`, `/embed_sparse` and `/similarity`."""

import numpy as np
from fastapi import Request
from msgspec import Raw

from engine_core.client.pending_jobs import FloatArray
from engine_core.refusal import RefusalError
from server.api.embeddings import (
    EMBEDDINGS,
    EmbeddingPlan,
    behind_prompt,
    embedding_plan,
    in_lists,
    planned_vectors,
    rows_in_json,
    text_prompt,
)
from server.api.encode import encode
from server.api.model_endpoint import reads
from server.api.relevance import Pairs, relevance
from server.api.tei import protocol as tei
from server.schemas.embeddings import EmbeddingRequest
from server.service.endpoint import Endpoint
from server.service.inputs import check_count, text_items
from server.service.service import Model, record_of, service_of

EMBED = EMBEDDINGS.at(
    "/embed", tei.operation_of(list[list[float]], body=tei.EmbedRequest), order=70
)
EMBED_SPARSE = Endpoint(
    "POST",
    "/embed_sparse",
    tei.operation_of(list[list[tei.SparseValue]], body=tei.EmbedTokensRequest),
    tasks=("embed_sparse",),
    order=80,
)
EMBED_ALL = EMBEDDINGS.at(
    "/embed_all", tei.operation_of(list[list[list[float]]], body=tei.EmbedTokensRequest), order=90
)
SIMILARITY = EMBEDDINGS.at(
    "/similarity", tei.operation_of(list[float], body=tei.SimilarityRequest), order=100
)


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


@EMBED.answered_by
@tei.errors
@reads(tei.EmbedRequest, the_embedder)
async def embed(request: Request, body: tei.EmbedRequest, model: Model) -> list[list[float]]:
    """A vector for each text, of length 1 unless `normalize` is false."""
    normalize = body.normalize is not False
    plan = _plan(request, body, model, dimensions=body.dimensions, normalize=normalize)
    return (await planned_vectors(request, model, plan)).values.tolist()


@EMBED_SPARSE.answered_by
@tei.errors
@reads(tei.EmbedTokensRequest, the_sparse_embedder)
async def embed_sparse(request: Request, body: tei.EmbedTokensRequest, model: Model) -> list[Raw]:
    """The nonzero entries of the vector of each text, which has the size of the vocabulary."""
    plan = _plan(request, body, model)
    encoded = await encode(request, model, plan.items, plan.options)
    rows = np.split(encoded.values, np.cumsum(encoded.counts)[:-1])
    return await rows_in_json(rows, _sparse_values)


@EMBED_ALL.answered_by
@tei.errors
@reads(tei.EmbedTokensRequest, the_embedder)
async def embed_all(request: Request, body: tei.EmbedTokensRequest, model: Model) -> list[Raw]:
    """The last hidden state of each token of each text, special tokens included."""
    plan = _plan(request, body, model)
    encoded = await encode(request, model, plan.items, plan.options, token_states=True)
    rows = np.split(encoded.values, np.cumsum(encoded.prompt_tokens)[:-1])
    return await rows_in_json(rows, in_lists)


@SIMILARITY.answered_by
@tei.errors
@reads(tei.SimilarityRequest, the_embedder)
async def similarity(request: Request, body: tei.SimilarityRequest, model: Model) -> list[float]:
    """The similarity of a sentence to other sentences: the cosine of their vectors, unless the
    model's checkpoint names another."""
    sentences = body.inputs.sentences
    if not sentences:
        raise tei.empty_batch("inputs.sentences")
    check_count(len(sentences), "inputs.sentences", service_of(request).limits.max_inputs)
    options = body.parameters or tei.SimilarityParameters()
    prompt = text_prompt(model, options.prompt_name, None)
    cut = behind_prompt(tei.whole_cut(model, options), model, prompt)
    pairs = Pairs(
        queries=text_items(prompt + body.inputs.source_sentence, "inputs.source_sentence"),
        texts=text_items([prompt + sentence for sentence in sentences], "inputs.sentences"),
        cut_queries=cut,
        cut_texts=cut,
    )
    return (await relevance(request, model, pairs)).scores.tolist()


def _plan(
    request: Request,
    body: tei.EmbedTokensRequest,
    model: Model,
    *,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> EmbeddingPlan:
    """`body` as a request of `/v1/embeddings`. Raises RefusalError."""
    if body.inputs == []:
        raise tei.empty_batch("inputs")
    asked = EmbeddingRequest(
        input=body.inputs,
        dimensions=dimensions,
        normalize=normalize,
        prompt_name=body.prompt_name,
        truncation=body.truncate,
        truncation_side=tei.side(body),
    )
    return embedding_plan(asked, model, service_of(request).limits, field="inputs")


def _sparse_values(entries: FloatArray) -> list[tei.SparseValue]:
    indices, values = entries[:, 0].astype(int).tolist(), entries[:, 1].tolist()
    return [tei.SparseValue(*entry) for entry in zip(indices, values, strict=True)]
