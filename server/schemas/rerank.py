"""Rerank, in one form for the clients of Cohere, Jina, Voyage and LiteLLM."""

from typing import Annotated

import msgspec
from msgspec import Meta

from server.schemas.common import Count, EncodeRequest, Usage


class Document(msgspec.Struct, frozen=True, gc=False):
    text: str
    """The document's text."""


class RerankRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/rerank`."""

    """Example: {"documents": ["Paris is the capital of France.", "The giant panda lives on
    bamboo.", {"text": "Pandas are bears."}], "query": "What do pandas eat?", "return_documents":
    true, "top_n": 2}"""

    query: Annotated[str, Meta(min_length=1)]
    """Not empty; never truncated."""
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    """At least one; over 1000: `too_large`; too long: `context_length_exceeded`. What is not a
    text, such as `image`, is [refused](#known-not-served); other keys of an object are ignored."""
    top_n: Count | None = None
    """1 to 2³¹ − 1: the number of best results to return. Default: all."""
    top_k: Count | None = None
    """Another name of `top_n`; not both with different values. Default: all."""
    max_tokens_per_doc: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0 to 2³¹ − 1; 0 is no limit: documents lose their ends until they have so many tokens of
    their own, and fit beside the query. One that leaves no room: `context_length_exceeded`.
    Default: 0."""
    truncation: bool | None = None
    """Truncate documents until they fit into the model together with the query. Default: false."""
    return_documents: bool | None = None
    """Return each document's text. Default: false."""
    use_activation: bool | None = None
    """False: a reranker's scores are logits, without its configuration's activation. Default:
    true."""
    instruction: str | None = None
    """The task for a reranker that is a causal model; others refuse it. Default: its template's."""


class Ranked(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One document's score."""

    index: int
    """Number of the document in the request."""
    relevance_score: float
    """How well it fits the query: 0 to 1 of a reranker with a sigmoid, a cosine of an embedder."""


class RerankResult(Ranked, frozen=True, kw_only=True, omit_defaults=True):
    """One document's score."""

    document: Document | None = None
    """The document, if `return_documents` asks for it."""


class VoyageResult(Ranked, frozen=True, kw_only=True, omit_defaults=True):
    """One document's score in Voyage's form, where the document is a text."""

    document: str | None = None
    """The document, if `return_documents` asks for it."""


class APIVersion(msgspec.Struct, frozen=True):
    version: str
    """The version in the request's path: `1` or `2`."""

    @classmethod
    def of(cls, path: str) -> "APIVersion":
        return cls("2" if "/v2/" in path else "1")


class BilledUnits(msgspec.Struct, frozen=True):
    search_units: int
    """Searches: 1 a request."""


class InputTokens(msgspec.Struct, frozen=True):
    input_tokens: int
    """Tokens of all texts, special tokens included."""


class RerankMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    api_version: APIVersion
    """The version in the request's path."""
    billed_units: BilledUnits
    """A request is one search."""
    tokens: InputTokens
    """Tokens that were read."""
    warnings: list[str] = []
    """A line for each document that was truncated."""


class Reranking(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/rerank`."""

    id: str
    """Unique name of the request."""
    object: str = "list"
    """Always `list`."""
    model: str
    """The first of the model's names."""
    results: list[RerankResult]
    """Documents and their scores, the best first, equals in the order of the request."""
    data: list[VoyageResult]
    """The results once more, for Voyage's clients."""
    meta: RerankMeta
    """Version, units and warnings, for Cohere's clients."""
    usage: Usage
    """Counts of tokens: a reranker reads the query once for each document."""
