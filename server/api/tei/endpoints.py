"""TEI's endpoints: vectors, similarities, labels, relevance, tokens, and the model behind them."""

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
from fastapi import Request, Response
from msgspec import Raw

from engine_core.client.pending_jobs import FloatArray, OfTokens
from engine_core.messages import JobOptions, Tokenization
from engine_core.tokenization.sliced_text import SlicedText
from server import __version__
from server.api.classify import create_classifications, probabilities
from server.api.declaration import FindModel, answers
from server.api.embeddings import (
    EmbeddingPlan,
    behind_prompt,
    create_embeddings,
    embedding_plan,
    in_lists,
    planned_vectors,
    rows_in_json,
    text_prompt,
)
from server.api.encode import encode, texts_cut_to
from server.api.relevance import Pairs, create_reranking, relevance
from server.api.tei import protocol as tei
from server.api.tokenize import (
    ALL_TASKS,
    TokenizeRequest,
    Tokens,
    all_slices,
    create_tokens,
    detokenize,
    in_thread,
    tokenizing,
    with_special_tokens,
)
from server.http.body import fields_of, text_in
from server.schemas.common import invalid
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.rerank import Reranking, RerankRequest
from server.service.endpoint import Endpoint, operation
from server.service.inputs import Items, check_count, check_ids, text_items
from server.service.service import Model, record_of, service_of


def _first_of(*endpoints: Endpoint) -> FindModel:
    """Find the model of a name, which serves the last endpoint. Without a name it is the only one
    behind the first endpoint that is served at all."""

    def find(request: Request, name: str | None) -> Model:
        service, known = service_of(request), endpoints if name is None else ()
        served = filter(service.registry.serves, known)
        return service.find(record_of(request), name, next(served, endpoints[-1]))

    return find


@tei.answers(
    create_embeddings.at("/embed", "TEI", order=70),
    tei.described(list[list[float]], tei.EmbedRequest),
)
async def embed(request: Request, body: tei.EmbedRequest, model: Model) -> list[Raw]:
    """A vector for each text, of length 1 unless `normalize` is false."""
    normalize = body.normalize is not False
    plan = _plan(request, body, model, dimensions=body.dimensions, normalize=normalize)
    return await rows_in_json((await planned_vectors(request, model, plan)).values, in_lists)


@tei.answers(
    Endpoint("POST", "/embed_sparse", "TEI", tasks=("embed_sparse",), order=80),
    tei.described(list[list[tei.SparseValue]], tei.EmbedTokensRequest),
)
async def embed_sparse(request: Request, body: tei.EmbedTokensRequest, model: Model) -> list[Raw]:
    """The nonzero entries of the vector of each text, which has the size of the vocabulary."""
    plan = _plan(request, body, model)
    encoded = await encode(request, model, plan.items, plan.options)
    rows = np.split(encoded.values, np.cumsum(encoded.counts)[:-1])
    return await rows_in_json(rows, _sparse_values)


@tei.answers(
    create_embeddings.at("/embed_all", "TEI", order=90),
    tei.described(list[list[list[float]]], tei.EmbedTokensRequest),
)
async def embed_all(request: Request, body: tei.EmbedTokensRequest, model: Model) -> list[Raw]:
    """The last hidden state of each token of each text, special tokens included."""
    plan = _plan(request, body, model)
    encoded = await encode(
        request, model, plan.items, plan.options, of_tokens=OfTokens(("states",))
    )
    rows = np.split(encoded.values, np.cumsum(encoded.prompt_tokens)[:-1])
    return await rows_in_json(rows, in_lists)


@tei.answers(create_embeddings.at("/similarity", "TEI", order=100))
async def similarity(request: Request, body: tei.SimilarityRequest, model: Model) -> list[float]:
    """The similarity of a sentence to others: the cosine of their vectors, or the model's own."""
    sentences = body.inputs.sentences
    if not sentences:
        raise tei.empty_batch("inputs.sentences")
    check_count(len(sentences), "inputs.sentences", service_of(request).limits.max_inputs)
    options = body.parameters or tei.SimilarityParameters()
    prompt = text_prompt(model, options.prompt_name, None)
    job = JobOptions(tokenization=behind_prompt(tei.whole_cut(model, options), model, prompt))
    pairs = Pairs(
        queries=text_items(prompt + body.inputs.source_sentence, "inputs.source_sentence"),
        texts=text_items([prompt + sentence for sentence in sentences], "inputs.sentences"),
        query_options=job,
        text_options=job,
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


def _sparse_values(entries: FloatArray) -> bytes:
    indices, values = entries[:, 0].astype(int).tolist(), entries[:, 1].tolist()
    pairs = zip(indices, values, strict=True)
    return msgspec.json.encode([tei.SparseValue(*entry) for entry in pairs])


@tei.answers(create_classifications.at("/predict", "TEI", order=110))
async def predict(
    request: Request, body: tei.PredictRequest, model: Model
) -> list[tei.Prediction] | list[list[tei.Prediction]]:
    """The labels of a text, a pair, or each item of a list, sorted by score, highest first."""
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    items, name = _batch(inputs, "inputs", service_of(request).limits.max_documents)
    for index, texts in enumerate(items):
        if len(texts) not in (1, 2):
            raise invalid(name(index), f"{len(texts)} texts; expected one or two")
        model.text_bound.check_all(texts, lambda _, item=index: name(item))
    config = model.served.execution.model
    logits = await _logits(request, model, items, name, tei.whole_cut(model, body))
    scores = logits if body.raw_scores else probabilities(logits, config)
    predictions = [_predictions(row, config.labels) for row in scores]
    return predictions if items is inputs else predictions[0]


def _batch(inputs: list[Any], field: str, most: int) -> tuple[list[Any], Callable[[int], str]]:
    """The lists in a field, or the one that it is, and their names. Raises RefusalError."""
    if not inputs:
        raise tei.empty_batch(field)
    kinds = set(map(type, inputs))
    if kinds != {list}:
        if list in kinds:
            raise invalid(field, "all or none of its items are lists")
        return [inputs], lambda _: field
    check_count(len(inputs), field, most)
    return inputs, lambda index: f"{field}[{index}]"


async def _logits(
    request: Request,
    model: Model,
    items: list[list[str]],
    name: Callable[[int], str],
    cut: Tokenization,
) -> FloatArray:
    """float32[N, L]: single texts are one job, pairs another."""
    logits = np.empty((len(items), model.served.execution.model.num_labels), np.float32)
    for size in (1, 2):
        found = [(index, texts) for index, texts in enumerate(items) if len(texts) == size]
        if not found:
            continue
        indices, texts = zip(*found, strict=True)
        query = [first for first, _ in texts] if size == 2 else None
        names = [*map(name, indices)]
        last = Items([each[-1] for each in texts], [], names.__getitem__)
        options = JobOptions(tokenization=cut)
        logits[[*indices]] = (await encode(request, model, last, options, query=query)).values
    return logits


def _predictions(scores: FloatArray, labels: tuple[str, ...]) -> list[tei.Prediction]:
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return [tei.Prediction(float(scores[index]), labels[index]) for index in order]


@answers(
    create_reranking.at("/rerank", "TEI", "Jina, vLLM", order=120),
    operation(
        Reranking | list[tei.Rank],
        RerankRequest | tei.RerankTextsRequest,
        errors=tei.EITHER_ERRORS,
    ),
)
async def rerank(request: Request) -> Response:
    """Score texts against a query, for clients of TEI, Cohere and others."""
    fields = await fields_of(request)
    is_tei = "texts" in fields and "documents" not in fields
    return await (_rerank_texts if is_tei else create_reranking.handler)(request)


# Without a name a reranker, or if there is none an embedder.
_RERANKERS = (
    Endpoint("POST", "/rerank", tasks=("classify", "rerank"), relevance=True),
    create_reranking,
)


@tei.reads(_first_of(*_RERANKERS))
async def _rerank_texts(
    request: Request, body: tei.RerankTextsRequest, model: Model
) -> list[tei.Rank]:
    if not body.texts:
        raise tei.empty_batch("texts")
    check_count(len(body.texts), "texts", service_of(request).limits.max_documents)
    cut = Tokenization()
    if body.truncate:
        query = body.query if model.served.execution.scores_pairs else None
        cut = await texts_cut_to(model, model.max_model_len, query=query, side=tei.side(body))
    pairs = Pairs(
        queries=text_items(body.query, "query"),
        texts=text_items(body.texts, "texts"),
        query_options=JobOptions(),
        text_options=JobOptions(tokenization=cut),
    )
    found = await relevance(request, model, pairs)
    scores = found.raw_scores if body.raw_scores else found.probabilities
    best: list[int] = np.argsort(-found.raw_scores, kind="stable").tolist()
    texts = body.texts if body.return_text else [None] * len(body.texts)
    return [tei.Rank(index=index, score=float(scores[index]), text=texts[index]) for index in best]


_described = _first_of(create_embeddings, embed_sparse, create_classifications)


@tei.answers(Endpoint("GET", "/info", "TEI", order=130), find=_described)
async def get_info(request: Request, model: Model) -> tei.Info:
    """The model that answers, and the limits of a request."""
    limits, execution = service_of(request).limits, model.served.execution
    embeds = execution.task in ("embed", "embed_sparse")
    return tei.Info(
        model_id=model.name,
        model_dtype=execution.dtype,
        served_model_name=model.name,
        model_type=_model_type(model),
        max_concurrent_requests=limits.max_sequences,
        max_input_length=model.max_model_len,
        max_batch_tokens=execution.max_step_tokens,
        max_client_batch_size=limits.max_inputs if embeds else limits.max_documents,
        version=__version__,
    )


def _model_type(model: Model) -> tei.ModelType:
    config = model.served.execution.model
    if model.served.execution.task == "embed":
        # In TEI's words, where it has one: it pools neither by weights nor in several ways at once.
        modes = ("last_token" if mode == "lasttoken" else mode for mode in config.pooling.modes)
        return tei.ModelType(embedding=tei.EmbeddingType("+".join(modes)))
    if model.served.execution.task == "embed_sparse":
        return tei.ModelType(embedding=tei.EmbeddingType("splade"))
    labels = tei.ClassifierType(
        {str(index): label for index, label in enumerate(config.labels)},
        {label: index for index, label in enumerate(config.labels)},
    )
    ranks = model.served.execution.scores_relevance
    return tei.ModelType(reranker=labels) if ranks else tei.ModelType(classifier=labels)


@tei.answers(Endpoint("POST", "/", "TEI", order=140), tei.described(Any, tei.EmbedRequest))
async def answer(request: Request) -> Response:
    """TEI's root, which does what the model is for. It is `/embed` if there is an embedder, or
    else `/embed_sparse`, `/rerank` for a reranker, `/predict` for a classifier; with `model` by the
    task of that."""
    fields = await fields_of(request)
    execution = _named(request, fields).served.execution
    forms = (embed, embed_sparse, rerank)
    form = next((each for each in forms if each.is_served_by(execution)), predict)
    return await form.handler(request)


def _named(request: Request, fields: Mapping[str, Raw]) -> Model:
    """The model that the body names, if it can be read, or else that of `/info`. Raises
    RefusalError."""
    name = text_in(fields, "model")
    return _described(request, None) if name is None else _of_any_task(request, name)


_of_any_task = _first_of(create_embeddings, embed_sparse, create_classifications, detokenize)


@answers(
    Endpoint("POST", "/tokenize", "Jina, vLLM", "TEI", tasks=ALL_TASKS, order=200),
    operation(
        Tokens | list[list[tei.SimpleToken]],
        TokenizeRequest | tei.TokenizeTextsRequest,
        errors=tei.EITHER_ERRORS,
    ),
)
async def tokenize(request: Request) -> Response:
    """The tokens of texts, or of the prompt that a chat template makes of messages."""
    fields = await fields_of(request)
    is_tei = "inputs" in fields and fields.keys().isdisjoint(("prompt", "messages"))
    return await (_tokenize_texts if is_tei else create_tokens)(request)


@tei.reads(_of_any_task)
async def _tokenize_texts(
    request: Request, body: tei.TokenizeTextsRequest, model: Model
) -> list[Raw]:
    items = text_items(body.inputs, "inputs")
    if not items:
        raise tei.empty_batch("inputs")
    check_count(len(items), "inputs", service_of(request).limits.max_inputs)
    model.text_bound.check_all(items.texts, items.name)
    prompt = text_prompt(model, body.prompt_name, None)
    whole = [prompt + text for text in items.texts]
    special = body.add_special_tokens is not False
    with tokenizing(request, whole):
        sliced = await all_slices(model.tokenizer, whole, offsets=True)
        return await in_thread(
            lambda: [
                _tokens_of(model, text, of_text, special=special)
                for text, of_text in zip(whole, sliced, strict=True)
            ]
        )


@tei.answers(detokenize.at("/decode", "TEI", order=125), find=_of_any_task)
async def decode(request: Request, body: tei.DecodeRequest, model: Model) -> list[str]:
    """The text of each list of token ids, without special tokens unless they are asked for."""
    service, skips = service_of(request), body.skip_special_tokens is not False
    lists, name = _batch(body.ids, "ids", service.limits.max_inputs)
    for index, ids in enumerate(lists):
        check_ids(ids, name(index), model.vocab_size)
    with service.in_flight:
        return await in_thread(
            lambda: [model.tokenizer.decode(ids, skip_special_tokens=skips) for ids in lists]
        )


def _tokens_of(model: Model, text: str, sliced: SlicedText, *, special: bool) -> Raw:
    """The tokens of a text, as JSON: as objects those of a long text would be large."""
    # From characters, in which the tokenizer counts, to bytes, in which TEI does.
    bytes_before = list(accumulate((len(char.encode()) for char in text), initial=0))
    encoding = with_special_tokens(model.tokenizer, sliced, special=special)
    own = sliced.offsets()
    tokens: list[tei.SimpleToken] = []
    for id_, token, added in zip(
        encoding.ids, encoding.tokens, encoding.special_tokens_mask, strict=True
    ):
        start, stop = (None, None) if added else next(own)
        tokens.append(
            tei.SimpleToken(
                id=id_,
                text=token if start is None else text[start:stop],
                special=start is None,
                start=None if start is None else bytes_before[start],
                stop=None if stop is None else bytes_before[stop],
            )
        )
    return Raw(msgspec.json.encode(tokens))
