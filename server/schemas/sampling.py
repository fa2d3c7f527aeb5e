"""The options that completions and chat share. `workers/contract/token_sampling.py` says what a new
sampling parameter takes."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.common import Count, Int64, KeptTokens, RawObject

MAX_GRAMMAR_CHARS = 64 * 1024

Regex = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]

# A JSON schema, or a string that holds one, or null: `msgspec.Raw` and None make no union.
SchemaText = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "string", "null"]})]


class PlainText(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """Any text."""


class JsonObject(msgspec.Struct, frozen=True, tag="json_object"):
    """A JSON object, or one by a schema: llama.cpp's `schema`, TGI's `value`."""

    schema: SchemaText | UnsetType = UNSET
    """A JSON schema that the object is valid by; any object without it."""
    value: SchemaText | UnsetType = UNSET
    """TGI's name of the schema, or of the regular expression that the text matches."""


class JsonValue(msgspec.Struct, frozen=True, tag="json"):
    """JSON that is valid by a schema, as TGI has it."""

    value: SchemaText
    """TGI's name of the schema, or of the regular expression that the text matches."""


class RegexValue(msgspec.Struct, frozen=True, tag="regex"):
    """Text that matches a regular expression, as TGI has it."""

    value: Regex
    """TGI's name of the schema, or of the regular expression that the text matches."""


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema as OpenAI wraps it."""

    schema: RawObject
    """The JSON schema."""
    name: str | None = None
    """A name for it, without effect."""
    description: str | None = None
    """The purpose, without effect."""
    strict: bool | None = None
    """False: what cannot be followed is left out, and objects stay open. Otherwise it is an
    error."""


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON that is valid by a schema: OpenAI's `json_schema`, TGI's `value`."""

    json_schema: NamedSchema | None = None
    """The JSON schema that the text is valid by."""
    value: NamedSchema | None = None
    """TGI's name of the schema, or of the regular expression that the text matches."""


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's: one of these."""

    json: SchemaText | UnsetType = UNSET
    """A JSON schema, or a string that holds one."""
    regex: Regex | None = None
    """A regular expression for the whole text."""
    choice: Choices | None = None
    """Texts of which one is written."""
    json_object: bool | None = None
    """True: any JSON object."""


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
ReportedTokens = Annotated[list[TokenId], Meta(max_length=128)]
BadWords = Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=256)]


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send a last chunk with `usage` and no choices."""
    continuous_usage_stats: bool | None = None
    """Send the `usage` so far with every chunk."""


class SamplingOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The options that completions and chat share. One with the name of a parameter of
    `TokenSampling` sets it. At most one of those from `response_format` to `guided_choice` is
    given: other servers' names for what the whole text must match."""

    model: str | None = None
    """A name of the model, which for a chat has a [template](#chat-templates). Default: [the only
    one that fits](#rules-for-every-request)."""
    stream: bool | None = None
    """See [streaming](#streaming) and [chat streams](#chat-streams). Default: false."""
    stream_options: StreamOptions | None = None
    """`include_usage`, `continuous_usage_stats`: booleans, default false; only with `stream`."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """0 to 2; 0 takes the likeliest token, whatever `top_p`, `top_k`, `min_p` and `seed`. Default:
    the model's, or 1."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """0 to 1: after `top_k`, keeps the fewest likeliest tokens that reach this share of the
    probability; 0 is `temperature` 0. Default: the model's, or 1."""
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """−1 to 2³¹ − 1: keeps this many of the likeliest tokens; 0, −1: all. Default: the model's, or
    0."""
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """0 to 1: after `top_p`, keeps the tokens whose probability is at least `min_p` times that of
    the likeliest token; 0 switches it off. Default: the model's, or 0."""
    presence_penalty: Penalty | None = None
    """−2 to 2: subtracted from the logits of tokens that the choice has, without its prompt.
    Default: 0."""
    frequency_penalty: Penalty | None = None
    """−2 to 2: subtracted from a logit for each time that the choice has the token. Default: 0."""
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=2)] | None = None
    """0.01 to 2: for tokens in the prompt or the choice, positive logits are divided by it and
    negative logits multiplied by it. Default: the model's, or 1."""
    logit_bias: LogitBias | None = None
    """Numbers from −100 to 100 by token id in decimal, added to the logits; at most 300, ids within
    the vocabulary: see [biases and penalties](#biases-and-penalties). Default: `{}`."""
    allowed_token_ids: list[TokenId] | None = None
    """Within the vocabulary: no others are sampled, end tokens included; empty: all. Default:
    `[]`."""
    bad_words: BadWords | None = None
    """At most 256 words of 1 to 128 characters: a word's last token is not sampled behind its
    others, as the word is tokenized at the beginning of a text and behind a space. Other tokens may
    still spell it. Default: `[]`."""
    n: Count | None = None
    """Choices for each prompt, or answers to a chat; from 1; over 128: `too_large`. Default: 1."""
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    """At most 16, of 1 to 1024 characters each."""
    stop_token_ids: StopTokens | None = None
    """At most 1024, within the vocabulary: end tokens beside the model's, also with `ignore_eos`.
    Default: `[]`."""
    include_stop_str_in_output: bool | None = None
    """The text ends with the stop string, or that of the stop token, not before it. Default:
    false."""
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0 to the most tokens that may be generated: before so many, no stop string or end token ends
    a choice, but a grammar that is complete does. Default: 0."""
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text; the end token also if false, unless
    `include_stop_str_in_output` is true. Default: true."""
    truncate_prompt_tokens: KeptTokens | None = None
    """1 to the model's context length, special tokens included: a longer prompt is truncated. −1:
    to what leaves room for `max_tokens`. `usage` counts what is kept."""
    truncation_side: Literal["left", "right"] | None = None
    """The side from which `truncate_prompt_tokens` removes tokens. Default: `"left"`."""
    priority: Int64 | None = None
    """Within [the server's range](#priorities): waiting requests with the lowest value begin first;
    among equal values, the oldest. A request that has begun is not displaced. Default: 0."""
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None
    """Above 0, to 10⁶ seconds; a chat's count once its prompt is rendered: see
    [deadlines](#deadlines)."""
    seed: Int64 | None = None
    """−2⁶³ to 2⁶³ − 1, modulo 2⁶³: see [seeds](#seeds). Default: a new one for each choice."""
    ignore_eos: bool | None = None
    """The model's end tokens do not end a choice. Default: false."""
    response_format: ResponseFormat | None = None
    """Also `{"type": "json_object"}`, `{"type": "json_schema", "json_schema": {"schema": {...}}}`,
    TGI's `value`: see [structured output](#structured-output). Default: `{"type": "text"}`."""
    regex: Regex | None = None
    """1 to 65,536 characters: see [structured output](#structured-output)."""
    choice: Choices | None = None
    """At least one, none empty; over 65,536 characters as JSON: `too_large`. See [structured
    output](#structured-output)."""
    json_schema: SchemaText | UnsetType = UNSET
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaText | UnsetType = UNSET
    guided_regex: Regex | None = None
    guided_choice: Choices | None = None
    """[Other servers' names](#other-names) of a JSON schema, `regex` and `choice`."""
    add_special_tokens: bool | None = None
    """Add special tokens to a text, or to what a chat's template writes. Default: true, for a chat
    false."""
    echo: bool | None = None
    """Begin each choice's text with its prompt, as far as `truncate_prompt_tokens` keeps that; a
    chat's answer with the text of the last message, if that is an assistant's. Default: false."""
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """0 to 20; not with `stream`: see [scores of a prompt](#scores-of-a-prompt). A chat's are those
    of the rendered prompt, as `prompt_logprobs` of the answer."""
    logprob_token_ids: ReportedTokens | None = None
    """At most 128, within the vocabulary; only with `logprobs`: tokens reported beside each
    generated one in place of the likeliest. See [named alternatives](#named-alternatives). Default:
    `[]`."""
    return_token_ids: bool | None = None
    """Each choice also has `token_ids`, all of its generated tokens, and the whole
    `prompt_token_ids`, which a stream sends with the choice's first chunk. Default: false."""
    return_tokens_as_token_ids: bool | None = None
    """Ids for tokens in `logprobs`, as `"token_id:17"`; not in a chat's `bytes`. Default: false."""
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """1 to 256 characters: cached prefixes are shared only with requests of the same salt, so that
    times tell others nothing. [API keys](configuration.md#api-keys) share none, unless by
    `--share-prefixes`."""
    session_id: str | None = None
    user: str | None = None
    """Ignored."""
