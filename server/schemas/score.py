"""`/v1/score`, in vLLM's form."""

import time
from typing import Annotated

import msgspec
from msgspec import Meta

from server.schemas.common import Int64, Usage

Texts = str | Annotated[list[str], Meta(min_length=1)]


class ScoreRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/v1/score`: one first text for all second ones, or as many of both.

    `queries` and `documents` are other names of `text_1` and `text_2`. With `use_activation`
    false the answer holds the model's logits, without the activation of its checkpoint.
    `instruction` replaces the default of a reranker whose template has one.
    """

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    use_activation: bool | None = None
    instruction: str | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    user: str | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One pair's score; `index` is that of its second text."""

    index: int
    object: str = "score"
    score: float


class ScoreList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/score`, in the order of the request."""

    id: str
    object: str = "list"
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    model: str
    data: list[Score]
    usage: Usage
