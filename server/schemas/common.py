"""Types that several endpoints share."""

import time
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from engine_core.refusal import RefusalError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
KeptTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""What a text is cut to; -1 is as much as the model takes."""
TextOrIds = str | list[str | int | list[int]]

Item = TypeVar("Item")


class EncodeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What all requests for vectors and scores have. `user` changes nothing."""

    model: str | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    user: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """Exact counts, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class EncodeAnswer(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """An answer in vLLM's form, in the order of the request."""

    id: str
    object: str = "list"
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    model: str
    data: list[Item]
    usage: Usage


class TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What answers and chunks of completions and chat begin with. `system_fingerprint` stands for
    the release, the model and how it is computed."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


FinishReason = Literal["stop", "length", "timeout"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """`cached_tokens` counts the tokens of the prompts that had been computed before."""

    cached_tokens: int


class CompletionUsage(msgspec.Struct, frozen=True):
    """Exact counts, with special tokens, a stop token and text cut at a stop string, and with all
    choices that were generated, returned or not. A prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token that might stand in a prompt: its rank by likelihood, from 1, and its text."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `/v1/models`; `created` is when the daemon started. `text_only` is true for a
    model that could see images, whose language model alone is served; else it is not there."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "penstock"
    max_model_len: int
    text_only: bool | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models of this daemon, as it was started with them."""

    object: str = "list"
    data: list[ModelCard]


class Health(msgspec.Struct, frozen=True):
    """A health check's answer when all is well."""

    status: str = "ok"


class Version(msgspec.Struct, frozen=True):
    """The daemon's version."""

    version: str


Value = TypeVar("Value")


def value_under_any_name(*named: tuple[str, Value | None]) -> Value | None:
    """The value of a field that has several names, `named` with their values; None if the request
    uses none of them. Raises RefusalError if two values differ."""
    return name_and_value(*named)[1]


def name_and_value(*named: tuple[str, Value | None]) -> tuple[str, Value | None]:
    """The first of a field's names that the request uses, with its value; the first of all names
    and None if it uses none. Raises RefusalError if two values differ."""
    first, *others = [(name, value) for name, value in named if value is not None] or named
    for name, value in others:
        if value != first[1]:
            raise given_twice(first[0], name)
    return first


def invalid(field: str, reason: str) -> RefusalError:
    """The refusal of a request whose `field` is at fault."""
    return RefusalError("invalid_request", f"{field}: {reason}", field)


def given_twice(field: str, other: str) -> RefusalError:
    """The refusal of a request that gives a field under both of its names."""
    reason = f"is another name of {field}, which is also given; give only one of them"
    return invalid(other, reason)
