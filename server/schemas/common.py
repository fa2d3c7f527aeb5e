"""Types that several endpoints share."""

import time
from dataclasses import replace
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from engine_core.refusal import RefusalError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
KeptTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""The length that a text is cut to. -1 is as much as the model takes."""
RawObject = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
"""Kept as it is written. msgspec takes any JSON for it: `as_object` checks."""
TextOrIds = str | list[str | int | list[int]]

Item = TypeVar("Item")


class EncodeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of all requests for vectors and scores."""

    model: str | None = None
    """A name of the model. Default: [the only one that fits](#rules-for-every-request)."""
    priority: Int64 | None = None
    """Within [the server's range](#priorities): waiting inputs with the lowest value come first,
    with equal values together. Default: 0."""
    cache_salt: str | None = None
    """Cached prefixes are shared only with requests of the same salt; encoders cache none."""
    user: str | None = None
    """Ignored."""


class Usage(msgspec.Struct, frozen=True):
    """Exact counts, special tokens included."""

    prompt_tokens: int
    """Tokens of all prompts or inputs, special tokens included."""
    total_tokens: int
    """The sum of both."""


class EncodeAnswer(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """An answer in vLLM's form, in the order of the request."""

    id: str
    """Unique name of the request."""
    object: str = "list"
    """Always `list`."""
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    """When the request came, in seconds since 1970."""
    model: str
    """The first of the model's names."""
    data: list[Item]
    """An entry for each pair or input, in their order."""
    usage: Usage
    """Counts of tokens."""


class TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of answers and chunks of completions and chat."""

    id: str
    """Unique name of the request, the same in all chunks of a stream."""
    object: str
    """The kind of answer."""
    created: int
    """When the request came, in seconds since 1970."""
    model: str
    """The first of the model's names."""
    system_fingerprint: str
    """Changes with the release, the model and the way in which it is computed."""


FinishReason = Literal["stop", "length", "timeout"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Details of the prompts' tokens."""

    cached_tokens: int
    """Prompt tokens that were in the prefix cache already."""


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Details of the generated tokens."""

    reasoning_tokens: int
    """Tokens that came while the model's reasoning was open, its closing marker included."""


class CompletionUsage(msgspec.Struct, frozen=True):
    """Exact counts of tokens. A prompt counts once."""

    prompt_tokens: int
    """Tokens of all prompts or inputs, special tokens included."""
    completion_tokens: int
    """Tokens of all choices, returned or not, with end tokens and text cut at a stop string."""
    total_tokens: int
    """The sum of both."""
    prompt_tokens_details: PromptTokensDetails
    """More about the prompts' tokens."""
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """More about the generated tokens, where a chat's answer is read as reasoning, text and
    calls."""


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token that might stand in a prompt."""

    logprob: float
    """Natural logarithm of the token's probability; −9999 where that is 0."""
    rank: int
    """The token's place among all by likelihood, from 1."""
    decoded_token: str
    """The token's text."""


PromptLogprobs = list[dict[int, PromptLogprob] | None]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `/v1/models`."""

    id: str
    """The first of the model's names."""
    object: str = "model"
    """`list` of the answer, `model` of an entry."""
    created: int
    """When the daemon started, in seconds since 1970."""
    owned_by: str = "penstock"
    """Always `penstock`."""
    root: str
    """The first of the model's names."""
    parent: None = None
    """Always null: adapters are not served."""
    max_model_len: int
    """Tokens that the model takes at most."""
    text_only: bool | UnsetType = UNSET
    """True if the checkpoint could see images, but is served as a language model alone; else
    absent."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models of this daemon, as it was started with them."""

    object: str = "list"
    """`list` of the answer, `model` of an entry."""
    data: list[ModelCard]
    """The models, in the order of the command line."""


class Health(msgspec.Struct, frozen=True):
    """A health check's answer when all is well."""

    status: str = "ok"
    """Always `ok`: what is not well has another status than 200."""


class Version(msgspec.Struct, frozen=True):
    """The daemon's version."""

    version: str
    """The daemon's version."""


Value = TypeVar("Value")


def value_under_any_name(*named: tuple[str, Value | None]) -> Value | None:
    """The value under one of a field's names, or None. Raises RefusalError if two values differ."""
    return name_and_value(*named)[1]


def name_and_value(*named: tuple[str, Value | None]) -> tuple[str, Value | None]:
    """The first of a field's names that a request uses, or else the first of all, and its value.
    Raises RefusalError if two values differ."""
    first, *others = [(name, value) for name, value in named if value is not None] or named
    for name, value in others:
        if value != first[1]:
            reason = f"is another name of {first[0]}, which is also given; give only one of them"
            raise invalid(name, reason)
    return first


def invalid(field: str, reason: str) -> RefusalError:
    """The refusal of a request whose `field` is at fault."""
    return RefusalError("invalid_request", f"{field}: {reason}", field)


def as_object(value: msgspec.Raw, field: str) -> msgspec.Raw:
    """JSON that is not read here. Raises RefusalError unless it is an object."""
    if memoryview(value)[:1].tobytes() != b"{":  # not a copy of it all
        raise invalid(field, "is no object")
    return value


def renamed(error: RefusalError, old: str, new: str) -> RefusalError:
    """`error` with the name that a request has for its field, if that is `old`."""
    if error.param != old:
        return error
    return replace(error, message=error.message.replace(old, new, 1), param=new)
