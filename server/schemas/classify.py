"""`/v1/classify`, in vLLM's form."""

import time
from typing import Annotated

import msgspec
from msgspec import Meta

from server.schemas.common import Int64, TextOrIds, Usage


class ClassifyRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/v1/classify`: a text, texts, one input's token ids, or inputs' token ids.

    With `use_activation` false the answer holds logits instead of probabilities.
    """

    input: TextOrIds
    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    use_activation: bool | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    user: str | None = None


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """One input: its likeliest label, and the probability of every label in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/classify`, in input order."""

    id: str
    object: str = "list"
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    model: str
    data: list[Classification]
    usage: Usage
