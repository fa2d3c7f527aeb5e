"""Types that several endpoints share."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TextOrIds = str | list[str | int | list[int]]


class Usage(msgspec.Struct, frozen=True):
    """Exact counts, special tokens included."""

    prompt_tokens: int
    total_tokens: int


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
