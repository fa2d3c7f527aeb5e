"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`, as Anthropic has them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.chat import FunctionName
from server.schemas.common import Int64, RawObject
from server.schemas.sampling import StopString


# `gc=False`: what comes from JSON has no cycles, and a conversation may have very many of these.
class TextBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="text"):
    """Text of a message or of a tool's result."""

    text: str
    """The text."""
    citations: list[dict[str, Any]] | None = None
    """Ignored."""
    cache_control: dict[str, Any] | None = None
    """Ignored: prefixes are cached without it."""


class SystemBlock(TextBlock, frozen=True, kw_only=True, gc=False, tag=False):
    """Text of the system prompt."""

    # msgspec asks for a field. For a tag it asks only where there are several kinds.
    type: Literal["text"]
    """What it is."""


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="thinking"):
    """Reasoning of an earlier answer, as it came."""

    thinking: str
    """The reasoning."""
    signature: str
    """What came with it. A block that this daemon has not signed is left out, and named in
    `x-penstock-ignored`."""


class RedactedThinkingBlock(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="redacted_thinking"
):
    """Reasoning whose text is in its signature alone."""

    data: str
    """The `signature` of a block whose `thinking` was omitted. Another server's is left out."""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="tool_use"):
    """A call in an earlier answer."""

    id: str
    """Name of the call."""
    name: str
    """The tool's name, passed to the template."""
    input: dict[str, Any]
    """The arguments."""
    caller: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    """Ignored."""


class ToolResultBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="tool_result"):
    """The result of an earlier call."""

    tool_use_id: str
    """The `id` of the call."""
    content: str | list[TextBlock] | None = None
    """The result, text. Default: none."""
    is_error: bool | None = None
    """Ignored: the template gets the content alone."""
    cache_control: dict[str, Any] | None = None
    """Ignored."""


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of a conversation. Neighbours of one role are one turn."""

    role: Literal["user", "assistant", "system"]
    """Who says it."""
    content: str | Annotated[list[Block], Meta(min_length=1)]
    """Text, or blocks: `text`; an assistant's `thinking`, `redacted_thinking` and `tool_use`; a
    user's `tool_result`. Others get 400 with the block's `type` as `param`."""


class MessagesTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    name: FunctionName
    """1 to 128 of letters without accents, digits and `_.:/-`; no two of the same name."""
    type: str | None = None
    """`custom`. Tools of other types, which have no schema, are refused if the request has no
    others or chooses one of them; else left out, and named in `x-penstock-ignored`. Default:
    `custom`."""
    description: str | None = None
    """What it does, for the template."""
    input_schema: RawObject | UnsetType = UNSET
    """Required of a custom tool: the JSON schema of its arguments, which are an object; at most
    65,536 characters."""
    strict: bool | None = None
    """True: what of the schema cannot be followed is an error. Otherwise it is left out. Default:
    false."""
    cache_control: dict[str, Any] | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    """Ignored."""


class AutoChoice(msgspec.Struct, frozen=True, kw_only=True, tag="auto"):
    """Calls may come."""

    disable_parallel_tool_use: bool | None = None
    """True: at most one call in an answer. Default: false."""


class AnyChoice(msgspec.Struct, frozen=True, kw_only=True, tag="any"):
    """At least one call comes."""

    disable_parallel_tool_use: bool | None = None
    """True: at most one call in an answer. Default: false."""


class NamedChoice(msgspec.Struct, frozen=True, kw_only=True, tag="tool"):
    """One call comes, of this tool."""

    name: str
    """The name of one of the request's tools."""
    disable_parallel_tool_use: bool | None = None
    """Without effect: there is one call."""


class NoChoice(msgspec.Struct, frozen=True, kw_only=True, tag="none"):
    """No calls come."""


Display = Literal["summarized", "omitted"]


class ThinkingEnabled(msgspec.Struct, frozen=True, kw_only=True, tag="enabled"):
    """The model reasons."""

    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    """Tokens of reasoning after which it is closed, from 1, if the model reasons."""
    display: Display | None = None
    """`omitted`: `thinking` of an answer is empty, and its `signature` holds the text. Default:
    `summarized`, which here is the whole text."""


class ThinkingAdaptive(msgspec.Struct, frozen=True, kw_only=True, tag="adaptive"):
    """The model reasons as long as it likes."""

    display: Display | None = None
    """As above."""


class ThinkingDisabled(msgspec.Struct, frozen=True, kw_only=True, tag="disabled"):
    """The model answers without reasoning, if its template knows how."""


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["json_schema"]
    """Which of the forms this is."""
    schema: RawObject
    """The JSON schema that the text is valid by."""


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer."""

    format: OutputFormat | None = None
    """`{"type": "json_schema", "schema": {...}}`: JSON that is valid by a schema."""
    effort: str | None = None
    """The template's variable `reasoning_effort`."""


class RequestMetadata(msgspec.Struct, frozen=True, kw_only=True):
    user_id: str | None = None
    """Without effect."""


InputMessages = Annotated[list[InputMessage], Meta(min_length=1)]


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation of a request to `/v1/messages`, whose tokens are to be counted."""

    """Example: {"messages": [{"content": "What does it return?", "role": "user"}], "model":
    "penstock-demo"}"""

    messages: InputMessages
    """At least one: see [messages](#messages-inputmessage). A last message of an assistant is
    continued."""
    model: str | None = None
    """A model with a [chat template](#chat-templates). Default: [the only one that
    fits](#rules-for-every-request)."""
    system: str | list[SystemBlock] | None = None
    """The system prompt, text or blocks of it. A block that begins with
    `x-anthropic-billing-header` is left out: it changes with each request. Default: none."""
    tools: list[MessagesTool] | None = None
    """Tools that the model may call, as those of [chat](#tools). Default: `[]`."""
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None = None
    """`{"type": "auto"}`, `any`, `tool` with a `name`, or `none`; only with `tools`. Default:
    `auto`."""
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    """`{"type": "enabled", "budget_tokens": ...}`, `adaptive` or `disabled`: the template's
    variables `enable_thinking` and `thinking`. Default: the template's."""
    output_config: OutputConfig | None = None
    """The `format` of the text, and the `effort`."""
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    speed: str | None = None
    """Ignored."""


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    """A request of `/v1/messages`."""

    """Example: {"max_tokens": 12, "messages": [{"content": "What does it return?", "role":
    "user"}], "model": "penstock-demo", "temperature": 0}"""
    """Example: {"max_tokens": 2, "messages": [{"content": "What does it return?", "role": "user"}],
    "model": "penstock-demo", "stream": true, "system": "Answer in one sentence.", "temperature":
    0}"""

    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """0 to 2³¹ − 1; more than the context has left is the rest. 0: the prompt is computed, which
    leaves it in the prefix cache, and nothing is written."""
    stream: bool | None = None
    """The answer as Anthropic's events, see below. Default: false."""
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    """As `stop` of [completions](#post-v1completions): at most 16, each of 1 to 1024 characters."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """0 to 2; 0 takes the likeliest token. Default: the model's."""
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """−1 to 2³¹ − 1, as in [completions](#post-v1completions). Default: the model's."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """0 to 1, as in [completions](#post-v1completions). Default: the model's."""
    priority: Int64 | None = None
    """Within [the server's range](#priorities): the lowest waiting is computed first. Default:
    0."""
    metadata: RequestMetadata | None = None
    """A `user_id`, without effect."""
    service_tier: str | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None
    """Ignored."""
