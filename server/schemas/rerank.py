"""`/v1/rerank`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from server.schemas.common import Count, Usage


class Document(msgspec.Struct, frozen=True):
    """A document as an object; other keys are ignored."""

    text: str


class RerankOptionsNotServed(msgspec.Struct, kw_only=True, frozen=True):
    """Options that clients know and this server does not serve: neutral values only."""

    max_tokens_per_doc: None = None
    max_chunks_per_doc: None = None
    truncate_prompt_tokens: None = None


class RerankRequest(RerankOptionsNotServed, kw_only=True, frozen=True):
    """A request of `/v1/rerank`. `top_n` keeps the best; without it every document is told."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    model: str | None = None
    top_n: Count | None = None
    return_documents: bool | None = None
    user: str | None = None


class RerankResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One document's score; `index` is its place in the request, `document` only if asked for."""

    index: int
    relevance_score: float
    document: Document | None = None


class Reranking(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/rerank`: best first, equals in the order of the request."""

    id: str
    model: str
    results: list[RerankResult]
    usage: Usage
