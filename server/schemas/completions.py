"""`/v1/completions`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, UnsetType

from server.schemas.common import (
    INT64_MAX,
    INT64_MIN,
    Count,
    No,
    NoItems,
    NoText,
    TextOrIds,
    Yes,
)
from server.schemas.structured import Choices, Regex, ResponseFormat

StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]

MAX_BIASES = 300
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LogitBias = Annotated[
    dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)
]


class CompletionOptionsNotServed(msgspec.Struct, kw_only=True, frozen=True):
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


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage` adds a last chunk without choices that carries the usage."""

    include_usage: bool | None = None


class CompletionRequest(CompletionOptionsNotServed, kw_only=True, frozen=True):
    """A request of `/v1/completions`. Null and absent mean the same.

    `top_k` 0 and -1 switch it off. The keys of `logit_bias` are token ids. A `repetition_penalty`
    divides logits, so it keeps away from 0, where they would no longer be finite. `logprobs` counts
    the alternatives beside each token; with `echo` the prompt's tokens get theirs too. Sampling
    that the request leaves open is the model's own (`generation_config.json`). At most one of
    `response_format`, `regex` and `choice` says what the text must match as a whole.
    """

    prompt: TextOrIds
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=2)] | None = None
    logit_bias: LogitBias | None = None
    n: Count | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    seed: Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    regex: Regex | None = None
    choice: Choices | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    user: str | None = None


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
