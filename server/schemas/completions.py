"""`/v1/completions`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, UnsetType

from server.schemas.common import Count, No, NoItems, NoText, TextOrIds, Yes
from server.schemas.sampling import SamplingOptions


class CompletionOptionsNotServed(SamplingOptions, kw_only=True, frozen=True):
    """Options that clients know and this server does not serve: neutral values only."""

    suffix: NoText = None
    best_of: Literal[1] | None = None
    min_tokens: Literal[0] | None = None
    stop_token_ids: NoItems = None
    bad_words: NoItems = None
    allowed_token_ids: NoItems = None
    include_stop_str_in_output: No = None
    use_beam_search: No = None
    skip_special_tokens: Yes = None
    add_special_tokens: Yes = None
    prompt_logprobs: None = None
    truncate_prompt_tokens: None = None


class CompletionRequest(CompletionOptionsNotServed, kw_only=True, frozen=True):
    """A request of `/v1/completions`. `logprobs` counts the alternatives beside each token; with
    `echo` the prompt's tokens get theirs too."""

    prompt: TextOrIds
    model: str | None = None
    max_tokens: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token; a prompt's first token has no log-probability.

    `text_offset` is where the token begins in the choice's text, in characters.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One continuation, or, in a stream, its next piece. Choices go prompt by prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionUsage(msgspec.Struct, frozen=True):
    """Exact counts: special tokens, a stop token and text cut at a stop string included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(msgspec.Struct, kw_only=True, frozen=True):
    """The answer of `/v1/completions`, and each chunk of a stream.

    In a stream `usage` is absent, or with `include_usage` null until the last chunk.
    """

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | UnsetType | None
