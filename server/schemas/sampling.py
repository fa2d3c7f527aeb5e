"""The options that completions and chat share: sampling, ends, streams, the text's form.

`workers/contract/token_sampling.py` says what a new sampling parameter takes.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.common import Count, Int64, KeptTokens

MAX_GRAMMAR_CHARS = 64 * 1024

Regex = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]

# A JSON schema, or a string that holds one, or null: `msgspec.Raw` and None make no union.
SchemaText = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "string", "null"]})]


class PlainText(msgspec.Struct, frozen=True, tag="text"):
    """Any text."""


class JsonObject(msgspec.Struct, frozen=True, tag="json_object"):
    """Any JSON object, or one that is valid by a schema: llama.cpp's `schema`, TGI's `value`."""

    schema: SchemaText | UnsetType = UNSET
    value: SchemaText | UnsetType = UNSET


class JsonValue(msgspec.Struct, frozen=True, tag="json"):
    """JSON that is valid by a schema, as TGI has it."""

    value: SchemaText


class RegexValue(msgspec.Struct, frozen=True, tag="regex"):
    """Text that matches a regular expression, as TGI has it."""

    value: Regex


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema as OpenAI wraps it. It is followed strictly, unless `strict` is false."""

    schema: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON that is valid by a schema: OpenAI's `json_schema`, TGI's `value`."""

    json_schema: NamedSchema | None = None
    value: NamedSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's: one of these."""

    json: SchemaText | UnsetType = UNSET
    regex: Regex | None = None
    choice: Choices | None = None
    json_object: bool | None = None


ResponseFormat = PlainText | JsonObject | JsonSchema | JsonValue | RegexValue


StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]

MAX_BIASES = 300
MAX_TIMEOUT_S = 1e6
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopTokens = Annotated[list[TokenId], Meta(max_length=1024)]
LogitBias = Annotated[
    dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)
]
BadWords = Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=256)]


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage` adds a last chunk with the usage and no choices; with
    `continuous_usage_stats` all chunks before that have the usage so far."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Null and absent mean the same. `session_id` and `user` change nothing.

    A field with the name of one of `TokenSampling`'s parameters sets it. A parameter that the
    request leaves out is the model's own (`generation_config.json`), or neutral. `top_k` -1
    is neutral like 0. `top_p` 0 keeps the likeliest token alone, as `temperature` 0 does. A
    `repetition_penalty` divides logits, so it must stay away from 0, where they would not be
    finite. The keys of `logit_bias` are token ids. No tokens but `allowed_token_ids` are sampled,
    unless that is empty, and none that would complete one of the `bad_words`.

    At most one of the fields from `response_format` to `guided_choice` is given: they are different
    servers' names for what the whole text must match. `timeout` is in seconds. Requests with a
    lower `priority` begin first. `truncate_prompt_tokens` is the number of prompt tokens kept, -1
    for as many as leave room for `max_tokens`; the others are dropped from the `truncation_side`,
    the left by default.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=2)] | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: BadWords | None = None
    n: Count | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: StopTokens | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Int64 | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None
    seed: Int64 | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    regex: Regex | None = None
    choice: Choices | None = None
    json_schema: SchemaText | UnsetType = UNSET
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaText | UnsetType = UNSET
    guided_regex: Regex | None = None
    guided_choice: Choices | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    session_id: str | None = None
    user: str | None = None
