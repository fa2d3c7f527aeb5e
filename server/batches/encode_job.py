"""Vectors and scores of a job, from the HTTP API's own endpoints."""

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from server.batches.base import Backend, all_of
from server.batches.requests import Options, Prompt, check_options, plain_ids
from server.batches.results import RequestError
from server.schemas.embeddings import EmbeddingList, EmbeddingRequest
from server.schemas.rerank import Reranking, RerankRequest, RerankResult

FloatArray = npt.NDArray[np.float32]
Vector = FloatArray | RequestError
Ranking = list[RerankResult] | RequestError

_TEXTS_A_REQUEST = 64
_REQUESTS_AT_ONCE = 16
_COMMON = frozenset({"model", "priority", "user"})
_FORMS = frozenset({"input", "encoding_format", "embed_dtype", "output_dtype"})
EMBED_OPTIONS = frozenset(EmbeddingRequest.__struct_fields__) - _COMMON - _FORMS
RERANK_OPTIONS = frozenset(RerankRequest.__struct_fields__) - _COMMON - {"query", "documents"}


class EncodeJob:
    """`prompt_tokens` counts what its requests have used."""

    def __init__(self, options: Options, known: frozenset[str]) -> None:
        """Raises ValueError for an option that is not among `known`."""
        try:
            check_options(options, known)
        except RequestError as error:
            raise ValueError(error.message) from None
        self._options = options
        self.prompt_tokens = 0

    async def embed(
        self, texts: Sequence[Prompt], backend: Backend, put: Callable[[int, Vector], None]
    ) -> None:
        """The vector of each text, float32[D], or its error. Raises JobStoppedError."""
        await all_of(
            [partial(self._embed, backend, texts, chunk, put) for chunk in _chunks(texts)],
            _REQUESTS_AT_ONCE,
        )

    async def rerank(
        self,
        pairs: Sequence[tuple[str, Sequence[str]]],
        backend: Backend,
        put: Callable[[int, Ranking], None],
    ) -> None:
        """The ranking of each query's documents, or its error. Raises JobStoppedError."""

        async def one(index: int) -> None:
            query, documents = pairs[index]
            body = {**self._options, "query": query, "documents": list(documents)}
            try:
                data = await backend.post("/v1/rerank", body)
            except RequestError as error:
                put(index, error)
                return
            answer = msgspec.json.decode(data, type=Reranking)
            self.prompt_tokens += answer.usage.prompt_tokens
            put(index, answer.results)

        await all_of([partial(one, index) for index in range(len(pairs))], _REQUESTS_AT_ONCE)

    async def _embed(
        self,
        backend: Backend,
        texts: Sequence[Prompt],
        chunk: list[int],
        put: Callable[[int, Vector], None],
    ) -> None:
        try:
            items = [_item(texts[index]) for index in chunk]
            body = {**self._options, "input": items, "encoding_format": "base64"}
            data = await backend.post("/v1/embeddings", body)
        except RequestError as error:
            if len(chunk) == 1:
                put(chunk[0], error)
                return
            # One of them is at fault: alone, each gets its own answer.
            for index in chunk:
                await self._embed(backend, texts, [index], put)
            return
        answer = msgspec.json.decode(data, type=EmbeddingList)
        self.prompt_tokens += answer.usage.prompt_tokens
        for index, entry in zip(chunk, answer.data, strict=True):
            vector = base64.b64decode(msgspec.json.decode(entry.embedding, type=str))
            put(index, np.frombuffer(vector, np.float32))


def _item(text: Prompt) -> str | list[int]:
    """Raises RequestError for what is neither a text nor token ids."""
    try:
        return text if isinstance(text, str) else plain_ids(text)
    except TypeError:
        raise RequestError("invalid_request", "input: a text or token ids", "input") from None


def _chunks(texts: Sequence[Prompt]) -> Iterator[list[int]]:
    """Numbers of neighbouring texts, or of neighbouring token ids."""
    chunk: list[int] = []
    for index, text in enumerate(texts):
        alike = not chunk or isinstance(text, str) == isinstance(texts[chunk[0]], str)
        if len(chunk) == _TEXTS_A_REQUEST or not alike:
            yield chunk
            chunk = []
        chunk.append(index)
    yield chunk
