"""`/v1/score`, in vLLM's form."""

from typing import Annotated

import msgspec
from msgspec import Meta

from server.schemas.common import EncodeAnswer, EncodeRequest, KeptTokens

Texts = str | Annotated[list[str], Meta(min_length=1)]


class ScoreRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/score`: one first text for all second ones, or as many of both.

    `queries` and `documents` are other names of `text_1` and `text_2`. With `use_activation`
    false the answer holds the model's logits, without the activation of its checkpoint.
    `instruction` replaces the default of a reranker whose template has one.
    """

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    use_activation: bool | None = None
    instruction: str | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One pair's score; `index` is that of its second text."""

    index: int
    object: str = "score"
    score: float


class ScoreList(EncodeAnswer[Score], frozen=True, kw_only=True):
    """The answer of `/v1/score`, in the order of the request."""
