"""`/v1/rerank`, `/v2/rerank` and `/rerank`: one form for the clients of Cohere, Jina, Voyage and
LiteLLM."""

from typing import Annotated

import msgspec
from msgspec import Meta

from server.schemas.common import Count, EncodeRequest, Usage


class Document(msgspec.Struct, frozen=True, gc=False):
    """A document as an object; what is not a text is refused, and other keys are ignored."""

    text: str


class RerankRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/rerank`. `top_n` (or `top_k`) keeps the best; without it every document is
    returned. `max_tokens_per_doc` (0: no limit) and `truncation` permit to cut documents. With
    `use_activation` false the scores are the model's logits, without the checkpoint's activation.
    `instruction` replaces the default of a reranker whose template has one."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    top_n: Count | None = None
    top_k: Count | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    truncation: bool | None = None
    return_documents: bool | None = None
    use_activation: bool | None = None
    instruction: str | None = None


class RerankResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One document's score; `index` is its position in the request, `document` optional."""

    index: int
    relevance_score: float
    document: Document | None = None


class VoyageResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The same in Voyage's form: `document` is a text."""

    index: int
    relevance_score: float
    document: str | None = None


class APIVersion(msgspec.Struct, frozen=True):
    """Cohere's: that of the path."""

    version: str

    @classmethod
    def of(cls, path: str) -> "APIVersion":
        """That of a request's path."""
        return cls("2" if "/v2/" in path else "1")


class BilledUnits(msgspec.Struct, frozen=True):
    """Cohere's: a request is one search."""

    search_units: int


class InputTokens(msgspec.Struct, frozen=True):
    """Cohere's: the tokens of all texts, special tokens included."""

    input_tokens: int


class RerankMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cohere's part of the answer. `warnings` names the documents that were cut."""

    api_version: APIVersion
    billed_units: BilledUnits
    tokens: InputTokens
    warnings: list[str] = []


class Reranking(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/rerank`: best first, equals in the order of the request.

    `data` repeats the results for Voyage's clients.
    """

    id: str
    object: str = "list"
    model: str
    results: list[RerankResult]
    data: list[VoyageResult]
    meta: RerankMeta
    usage: Usage
