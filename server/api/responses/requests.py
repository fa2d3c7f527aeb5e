"""The bodies of `/v1/responses` and what stands in them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.schemas.chat import FunctionName
from server.schemas.common import Count, Int64, RawObject
from server.schemas.sampling import Penalty, PlainText


# `gc=False`: what comes from JSON has no cycles, and an input may have very many of these.
class OutputPart(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A part of a call's output or of a summary."""

    type: str
    """`input_text`, `output_text`, `text`, `reasoning_text` or `summary_text`; of a message's
    content also `refusal` or `input_file`."""
    text: str | None = None
    """The text, but of a part of type `refusal` or `input_file`."""
    prompt_cache_breakpoint: dict[str, Any] | None = None
    """Ignored: prefixes are cached without it."""


class ItemPart(OutputPart, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A part of an item's content."""

    refusal: str | None = None
    """The text of a part of type `refusal`."""
    file_data: str | None = None
    """A text file, of a part of type `input_file`: `data:text/plain;base64,...`, or another type of
    text, in UTF-8. Others get 400."""
    filename: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    """Ignored."""


class ResponseItem(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An item of the input, which may be one of an earlier answer."""

    type: str | None = None
    """`message`, `reasoning`, `function_call`, `function_call_output`, `custom_tool_call`,
    `custom_tool_call_output` or `compaction`. Default: `"message"`."""
    role: Literal["user", "assistant", "system", "developer"] | None = None
    """A message's, which has to have one."""
    content: str | list[ItemPart] | None = None
    """A message's text, or its parts of text; the parts of reasoning."""
    id: str | None = None
    """Ignored: an earlier answer's."""
    call_id: str | None = None
    """Name of the call, or of that whose output this is."""
    name: str | None = None
    """Name of the tool that a call calls."""
    namespace: str | None = None
    """Name of the namespace that has the tool."""
    arguments: str | None = None
    """A `function_call`'s: a JSON object in a string."""
    input: str | None = None
    """A `custom_tool_call`'s: the text that the tool gets."""
    output: str | list[OutputPart] | None = None
    """The result of a call: a text, or parts of text."""
    summary: list[OutputPart] | None = None
    """Read as the reasoning if there is no other `content`."""
    encrypted_content: str | None = None
    """Reasoning as an earlier answer has it by `include`, read before `content`: one that another
    server has signed is left out, which `x-penstock-ignored` says. A `compaction`'s summary, which
    this server must have signed."""
    status: str | None = None
    phase: str | None = None
    """Ignored."""


# A JSON schema, or null: `msgspec.Raw` and None make no union.
_Parameters = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "null"]})]


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The form of a custom tool's input."""

    type: str
    """`text`; `grammar` gets 400."""


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a namespace, or one without."""

    type: str
    """`function`, `custom` or, but within one, `namespace`. Others run at OpenAI: they are left
    out, which `x-penstock-ignored` says, or refused if the request needs them."""
    name: FunctionName | None = None
    """1 to 128 of letters without accents, digits and `_.:/-`; no two of the same name."""
    description: str | None = None
    """What it does, for the template; a namespace's is ignored."""
    parameters: _Parameters = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    """A function's arguments, as `parameters` of [chat](#tools)."""
    strict: bool | None = None
    """As in [chat](#tools). Default: false."""
    format: ToolFormat | None = None
    """A custom tool's: `{"type": "text"}`."""


class ResponseTool(NamedTool, frozen=True, kw_only=True):
    """A tool that the model may call, or several in a namespace."""

    tools: list[NamedTool] | None = None
    """Those of a namespace."""


class ToolOfChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the request's tools."""

    type: str
    """`function` or `custom`, of a choice also `allowed_tools`."""
    name: str | None = None
    """The tool's name."""
    namespace: str | None = None
    """Name of the namespace that has the tool."""


class ResponseToolChoice(ToolOfChoice, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that is to be called, or some that may be."""

    mode: Literal["auto", "required"] | None = None
    """Of `allowed_tools`: whether one of them has to be called. Default: `"auto"`."""
    tools: list[ToolOfChoice] | None = None
    """Of `allowed_tools`: those that may be called."""


class TextObject(msgspec.Struct, frozen=True, tag="json_object", omit_defaults=True):
    """Any JSON object."""


class TextSchema(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema", omit_defaults=True):
    """JSON that is valid by a schema."""

    schema: RawObject
    """The JSON schema."""
    name: str | None = None
    """A name for it, without effect."""
    description: str | None = None
    """The purpose, without effect."""
    strict: bool | None = None
    """False: what cannot be followed is left out, and objects stay open. Otherwise it is an
    error."""


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The form of the text."""

    format: PlainText | TextObject | TextSchema | None = None
    """`{"type": "text"}`, `{"type": "json_object"}` or `{"type": "json_schema", "name": "...",
    "schema": {...}}`: see [structured output](#structured-output). Default: `{"type": "text"}`."""
    verbosity: str | None = None
    """No effect."""


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the model reasons."""

    effort: str | None = None
    """As `reasoning_effort` of [chat](#post-v1chatcompletions)."""
    summary: str | None = None
    generate_summary: str | None = None
    """No effect: the reasoning itself is in the answer."""


Include = Literal[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class ResponsePrompt(msgspec.Struct, kw_only=True, frozen=True):
    """The prompt of an answer, or one to be counted."""

    model: str | None = None
    """A model with a [chat template](#chat-templates). Default: [the only one that
    fits](#rules-for-every-request)."""
    input: str | Annotated[list[ResponseItem], Meta(min_length=1)]
    """A text of the user's, or at least one item: see [items](#items)."""
    previous_response_id: str | None = None
    """A stored response, whose conversation the input continues, without its `instructions`."""
    instructions: str | None = None
    """A system message before the input."""
    tools: list[ResponseTool] | None = None
    """Tools that the model may call: see [tools of responses](#tools-of-responses). Default:
    `[]`."""
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    """Whether it calls none, whether it must call one, `{"type": "function", "name": "..."}` or
    `{"type": "allowed_tools", "mode": "auto", "tools": [...]}`; only with `tools`. Default:
    `"auto"`."""
    parallel_tool_calls: bool | None = None
    """False: at most one call in an answer. Default: true."""
    text: TextOptions | None = None
    """The `format` of the text."""
    reasoning: ReasoningOptions | None = None
    """The `effort` of reasoning."""
    truncation: Literal["auto", "disabled"] | None = None
    """`auto`: a prompt that is too long loses tokens at its beginning. Default: `"disabled"`."""


class ResponsesRequest(ResponsePrompt, kw_only=True, frozen=True):
    """A request of `/v1/responses`."""

    """Example: {"input": "What does the function return?", "instructions": "Answer in one
    sentence.", "max_output_tokens": 12, "model": "penstock-demo", "temperature": 0}"""
    """Example: {"input": [{"content": "What does it return?", "role": "user"}],
    "max_output_tokens": 2, "model": "penstock-demo", "stream": true, "temperature": 0}"""

    stream: bool | None = None
    """The answer as OpenAI's events, see [below](#events-of-responses). Default: false."""
    max_output_tokens: Count | None = None
    """1 to 2³¹ − 1; more than the context has left is the rest. Default: the rest."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """0 to 2; 0 takes the likeliest token. Default: the model's."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """0 to 1, as in [completions](#post-v1completions). Default: the model's."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    """−2 to 2, as in [completions](#biases-and-penalties). Default: 0."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """0 to 20: alternatives reported for each token; only with `include` of
    `message.output_text.logprobs`. Default: 0."""
    include: list[Include] | None = None
    """`message.output_text.logprobs`: each token's log-probability;
    `reasoning.encrypted_content`: the reasoning again, signed. Others have no effect. Default:
    `[]`."""
    metadata: Metadata | None = None
    """At most 16 texts of 512 characters, with names of 64: they come back with the answer.
    Default: `{}`."""
    priority: Int64 | None = None
    """Within [the server's range](#priorities): the lowest waiting is computed first. Default:
    0."""
    store: bool | None = None
    """Store the answer for 30 days, see [stored responses](#stored-responses). Default: true with a
    state folder that has room."""
    max_tool_calls: int | None = None
    """No effect: it bounds calls of tools that run at OpenAI."""
    stream_options: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    user: str | None = None
    """No effect."""


class InputTokensRequest(ResponsePrompt, kw_only=True, frozen=True):
    """A request of `/v1/responses/input_tokens`."""

    """Example: {"input": "What does the function return?", "model": "penstock-demo"}"""


class CompactRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/v1/responses/compact`."""

    """Example: {"input": [{"content": "What does it return?", "role": "user"}, {"content": "A
    list.", "role": "assistant"}], "max_output_tokens": 12, "model": "penstock-demo"}"""

    model: str
    """A model with a [chat template](#chat-templates)."""
    input: str | list[ResponseItem] | None = None
    """The conversation: a text of the user's, or [items](#items)."""
    previous_response_id: str | None = None
    """A stored response, whose conversation the input continues, without its `instructions`."""
    instructions: str | None = None
    """A system message before the input, which is not part of the answer."""
    max_output_tokens: Count | None = None
    """1 to 2³¹ − 1, of reasoning and summary together. Default: 4,096."""
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    """No effect."""
