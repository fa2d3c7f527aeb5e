"""`/v1/chat/completions`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.common import CompletionUsage, Count, FinishReason, PromptLogprobs, TextAnswer
from server.schemas.sampling import SamplingOptions


# `gc=False`: what comes from JSON has no cycles, and a conversation may have very many of these.
class ResultDocument(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A result of a tool, as Cohere has it."""

    data: str | dict[str, Any]
    """The text that the template gets, or an object, whose JSON it gets."""
    id: str | None = None
    """Name of the call; a document's is ignored: nothing is cited."""

    @property
    def text(self) -> str:
        """The text that the template gets."""
        return self.data if isinstance(self.data, str) else msgspec.json.encode(self.data).decode()


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a message's content."""

    type: str
    """`text` of a part, `refusal` or `thinking` of an assistant's, or `document` of a tool's;
    `function` of a tool call."""
    text: str | None = None
    """The text of a part of type `text`."""
    refusal: str | None = None
    """The text of a part of type `refusal`, which the template gets as content."""
    thinking: str | None = None
    """The text of a part of type `thinking`, which is read as `reasoning_content`."""
    document: ResultDocument | None = None
    """What a part of type `document` holds, which the template gets as content."""
    cache_control: dict[str, Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None
    """Ignored: prefixes are cached without them."""


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The function that an assistant called."""

    name: str
    """The function's name, passed to the template."""
    arguments: str
    """A JSON object in a string; the template gets it as an object."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call in an earlier answer of an assistant, for the template to repeat."""

    function: FunctionCall
    """The function that was called."""
    id: str | None = None
    """Name of the call; a document's is ignored: nothing is cited."""
    type: Literal["function"] | None = None
    """`text` of a part, `refusal` or `thinking` of an assistant's, or `document` of a tool's;
    `function` of a tool call."""
    index: int | None = None
    """Place of the call in a stream, ignored."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of a conversation."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    """1 to 64 characters: `"system"`, `"developer"`, `"user"`, `"assistant"`, `"tool"`, or another
    that the template writes; templates without `developer` get `system`."""
    content: str | list[ContentPart] | None = None
    """Required, but for an assistant; templates get [the form that they
    take](#what-a-template-writes). Parts of other types get 400 with `messages[i].content[j]`, or a
    field of it, as `param`."""
    refusal: str | None = None
    """An assistant's, which the template gets as its content, or behind that."""
    name: str | None = None
    """Passed to the template."""
    reasoning_content: str | None = None
    """An assistant's, passed to the template by each name that templates have for it."""
    reasoning: str | None = None
    """Another name of `reasoning_content`."""
    tool_calls: list[ToolCall] | None = None
    """An assistant's: `function` with `name` and `arguments`, JSON in a string, which templates get
    as an object if they take one, and `id`, which they get in the form that they take."""
    tool_call_id: str | None = None
    """A tool's: the `id` of the earlier call whose result this is. Default: that of the first call
    before it without a result."""
    function_call: FunctionCall | None = None
    """An assistant's, the older form of one entry of `tool_calls`. Its result has the role
    `function`, and the function's `name`."""
    cache_control: dict[str, Any] | None = None
    """Ignored: prefixes are cached without it."""


# A JSON schema, or null: `msgspec.Raw` and None make no union.
_Parameters = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
FunctionName = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.:/-]+$(?!\n)")
]


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: FunctionName
    """1 to 128 of letters without accents, digits and `_.:/-`; no two of the same name."""
    description: str | None = None
    """What it does, for the template."""
    parameters: _Parameters | UnsetType = UNSET
    """The JSON schema of its arguments, which are an object; at most 65,536 characters. Default:
    an object without properties."""
    strict: bool | None = None
    """True: what of the schema cannot be followed is an error. Otherwise it is left out. Default:
    false."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    function: Function
    """The function that the tool is."""
    type: Literal["function"] = "function"
    """Always `function`."""


class FunctionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A function, by its name."""

    name: str
    """The name of one of the request's functions."""


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, tag="function"):
    """A tool, by its name."""

    function: FunctionChoice
    """The function that the tool is."""


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    """Whether one of them has to be called."""
    tools: Annotated[list[ToolChoice], Meta(min_length=1)]
    """Those that may be called."""


class AllowedToolsChoice(msgspec.Struct, frozen=True, kw_only=True, tag="allowed_tools"):
    """A choice among some of the tools: the template gets all, for the prefix cache."""

    allowed_tools: AllowedTools
    """The tools that may be called."""


Messages = Annotated[list[ChatMessage], Meta(min_length=1)]
TemplateVariables = dict[str, Any]


class ChatRequest(SamplingOptions, kw_only=True, frozen=True):
    """A request of `/v1/chat/completions`."""

    """Example: {"max_completion_tokens": 12, "messages": [{"content": "Answer in one sentence.",
    "role": "system"}, {"content": "What does the function return?", "role": "user"}],
    "temperature": 0}"""
    """Example: {"logprobs": true, "max_completion_tokens": 1, "messages": [{"content": "What does
    it return?", "role": "user"}], "temperature": 0, "top_logprobs": 1}"""

    messages: Messages
    """At least one: see [messages](#messages-chatmessage)."""
    max_completion_tokens: Count | None = None
    """1 to 2³¹ − 1; over the rest of the context: `context_length_exceeded`. Default: the rest."""
    max_tokens: Count | None = None
    """The older name of `max_completion_tokens`; refused if both are given and differ."""
    logprobs: bool | None = None
    """Return each token's log-probability. Default: false."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """0 to 20: alternatives reported for each token; only with `logprobs`. Default: 0."""
    add_generation_prompt: bool | None = None
    """End the prompt with an answer's beginning. Default: true, unless a message is continued."""
    continue_final_message: bool | None = None
    """End the prompt inside the last message, for the model to go on; not beside a true
    `add_generation_prompt`. Default: false."""
    tools: list[Tool] | None = None
    """Tools that the model may call: see [tools](#tools). At most 1,024, and 524,288 characters of
    their schemas; more: `too_large`. Default: `[]`."""
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | AllowedToolsChoice | None = None
    """Whether it calls none, whether it must call one, `{"type": "function", "function": {"name":
    "..."}}` or `{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [...]}}`; only
    with `tools`. Default: `"auto"`."""
    parallel_tool_calls: bool | None = None
    """False: at most one call in an answer. Default: true, but for a tool that is named."""
    functions: list[Function] | None = None
    function_call: Literal["none", "auto"] | FunctionChoice | None = None
    """The older forms of `tools` and `tool_choice`, not beside these; answers then have
    `function_call`, of one call at most."""
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """Tokens of reasoning after which it is closed, from 0; −1: no limit. Only for a model that
    reasons. Default: −1."""
    reasoning_effort: str | None = None
    """A variable of this name for the template. `"none"` also sets its `enable_thinking` and
    `thinking` to false, unless `chat_template_kwargs` has them."""
    chat_template_kwargs: TemplateVariables | None = None
    """Any JSON: the template's variables by name, but not `messages`, `tools`, `documents`,
    `chat_template`, `add_generation_prompt`, `continue_final_message` or a special token. Default:
    `{}`."""
    store: bool | None = None
    """Nothing is stored."""
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    """At most 16 strings by name, without effect."""
    service_tier: str | None = None
    """No effect."""
    verbosity: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    """No effect."""


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that might be here."""

    token: str
    """The token's text, or its id with `return_tokens_as_token_ids`."""
    logprob: float
    """Natural logarithm of its probability, before sampling options; −9999 where that is 0."""
    bytes: list[int] | None
    """The token's bytes in UTF-8, which may be a part of a character."""


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """A generated token and the likeliest at its position."""

    top_logprobs: list[TopLogprob]
    """The `top_logprobs` likeliest tokens at this place, or the token and those named."""


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[TokenLogprob]
    """An entry for each generated token."""
    refusal: None = None
    """Always null."""


ChatFinishReason = FinishReason | Literal["tool_calls", "function_call"]


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model calls."""

    name: str | UnsetType = UNSET
    """The function's name; in a stream only where the call begins."""
    arguments: str
    """The arguments, a JSON object in a string; in a stream, what is added to it."""


class CalledTool(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, or an addition to one."""

    index: int | UnsetType = UNSET
    """Number of the call within the answer, from 0; only in a stream."""
    id: str | UnsetType = UNSET
    """Name of the call, for the message with its result; in a stream only where it begins."""
    type: Literal["function"] | UnsetType = UNSET
    """Always `function`; in a stream only where the call begins."""
    function: CalledFunction
    """The function that is called, with its arguments."""


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's answer."""

    role: str = "assistant"
    """Always `assistant`; in a stream in the first chunk of a choice only."""
    content: str | None
    """The text, null beside calls if there is none; in a stream, what is added to it."""
    refusal: None = None
    """Always null: the daemon judges no answers."""
    reasoning_content: str | UnsetType = UNSET
    """The model's reasoning, if there is any; in a stream, what is added to it."""
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`."""
    tool_calls: list[CalledTool] | UnsetType = UNSET
    """Calls of tools, if there are any. One that `max_tokens` cuts is only in a stream."""
    function_call: CalledFunction | UnsetType = UNSET
    """In place of `tool_calls`, the call, if the request has `functions`."""


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    """Number of the answer among `n`."""
    message: AssistantMessage
    """The whole answer."""
    logprobs: ChatLogprobs | None
    """Log-probabilities of the tokens, if requested; else null."""
    finish_reason: ChatFinishReason | None
    """`length` at `max_tokens`, `timeout` at the deadline, `tool_calls` or `function_call` at an
    end with calls, else `stop`; null before a stream's end."""
    token_ids: list[int] | None = None
    """Ids of the generated tokens, if `return_token_ids` asks for them; else null, and absent in a
    stream."""


class ChatCompletion(TextAnswer, frozen=True, kw_only=True):
    """The answer of `/v1/chat/completions`."""

    object: str = "chat.completion"
    """Always `chat.completion`, or `chat.completion.chunk` in a stream."""
    choices: list[ChatChoice]
    """One for each answer; in a stream, the pieces of this chunk."""
    usage: CompletionUsage
    """Counts of tokens; in a stream absent, or with `include_usage` null until the last chunk."""
    prompt_token_ids: list[int] | None = None
    """Ids of the prompt, by `return_token_ids`; in a stream in the choice's first chunk."""
    prompt_logprobs: PromptLogprobs | None = None
    """For each token of the prompt the likeliest and itself, by id, if asked; null for the
    first."""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """An addition to a message: its role at first, then reasoning, text or a call, nothing at
    last."""

    role: str | UnsetType = UNSET
    """Always `assistant`; in a stream in the first chunk of a choice only."""
    content: str | UnsetType | None = UNSET
    """The text, null beside calls if there is none; in a stream, what is added to it."""
    refusal: UnsetType | None = UNSET
    """Always null: the daemon judges no answers."""
    reasoning_content: str | UnsetType = UNSET
    """The model's reasoning, if there is any; in a stream, what is added to it."""
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`."""
    tool_calls: list[CalledTool] | UnsetType = UNSET
    """Calls of tools, if there are any. One that `max_tokens` cuts is only in a stream."""
    function_call: CalledFunction | UnsetType = UNSET
    """In place of `tool_calls`, the call, if the request has `functions`."""


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """Number of the answer among `n`."""
    delta: Delta
    """The chunk's addition to the answer."""
    logprobs: ChatLogprobs | None
    """Log-probabilities of the tokens, if requested; else null."""
    finish_reason: ChatFinishReason | None
    """`length` at `max_tokens`, `timeout` at the deadline, `tool_calls` or `function_call` at an
    end with calls, else `stop`; null before a stream's end."""
    token_ids: list[int] | UnsetType = UNSET
    """Ids of the generated tokens, if `return_token_ids` asks for them; else null, and absent in a
    stream."""


class ChatChunk(TextAnswer, frozen=True, kw_only=True):
    """A chunk of a stream."""

    object: str = "chat.completion.chunk"
    """Always `chat.completion`, or `chat.completion.chunk` in a stream."""
    choices: list[ChunkChoice]
    """One for each answer; in a stream, the pieces of this chunk."""
    usage: CompletionUsage | UnsetType | None = UNSET
    """Counts of tokens; in a stream absent, or with `include_usage` null until the last chunk."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """Ids of the prompt, by `return_token_ids`; in a stream in the choice's first chunk."""
