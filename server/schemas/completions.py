"""`/v1/completions`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.common import (
    CompletionUsage,
    Count,
    FinishReason,
    PromptLogprobs,
    TextAnswer,
    TextOrIds,
)
from server.schemas.sampling import SamplingOptions


class CompletionRequest(SamplingOptions, kw_only=True, frozen=True):
    """A request of `/v1/completions`. `max_completion_tokens` is chat's name of `max_tokens`.

    `logprobs` counts the alternatives beside each token; with `echo` the prompt's tokens get theirs
    too. `best_of` choices are generated, and the `n` whose tokens are the likeliest on average
    returned.
    """

    prompt: TextOrIds
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    best_of: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token; a prompt's first token has no log-probability.

    `text_offset` is where the token begins in the choice's text, in characters.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation, or its next piece in a stream. Choices are in the order of the prompts.

    The fields after `finish_reason` are there if they are requested; in a stream the prompt's ids
    come with a choice's first piece. `prompt_logprobs` has an entry, by token id, for each token of
    the prompt, null for the first.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(TextAnswer, kw_only=True, frozen=True):
    """The answer of `/v1/completions`, and each chunk of a stream. `system_fingerprint` stands for
    the release, the model and how it is computed.

    In a stream `usage` is absent, or with `include_usage` null until the last chunk.
    """

    object: str = "text_completion"
    choices: list[CompletionChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
