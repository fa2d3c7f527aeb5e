"""`/v1/chat/completions`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.common import CompletionUsage, Count, FinishReason, PromptLogprobs, TextAnswer
from server.schemas.sampling import SamplingOptions


# `gc=False`: what comes from JSON has no cycles, and a conversation may have very many of these.
class ContentPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a message's content. Types `text` and, of an assistant, `refusal` are served. The
    last two fields change nothing."""

    type: str
    text: str | None = None
    refusal: str | None = None
    cache_control: dict[str, Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The function that an assistant called. `arguments` is a JSON object, written out."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call in an earlier answer of an assistant, for the template to repeat. `index`, its place
    in a stream, changes nothing."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of a conversation. An assistant's may lack `content`. Roles beside `system`,
    `developer`, `user`, `assistant` and `tool` are the template's to know. `reasoning` is another
    name of `reasoning_content`. `cache_control` changes nothing."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    refusal: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    cache_control: dict[str, Any] | None = None


Messages = Annotated[list[ChatMessage], Meta(min_length=1)]
TemplateVariables = dict[str, Any]


class ChatRequest(SamplingOptions, kw_only=True, frozen=True):
    """A request of `/v1/chat/completions`.

    `max_tokens` is the older name of `max_completion_tokens`. `reasoning_effort` and
    `chat_template_kwargs` are the template's to use. With `echo` an answer begins with the text of
    the last message, if that is an assistant's. From `store` on fields change nothing.
    """

    messages: Messages
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateVariables | None = None
    store: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None
    verbosity: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that might be here. `bytes` are its UTF-8, or its part of a character's."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """A generated token and the likeliest at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry for each token."""

    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's answer."""

    role: str = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `token_ids` are there if they are requested."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(TextAnswer, frozen=True, kw_only=True):
    """The answer of `/v1/chat/completions`. `system_fingerprint` stands for the release, the model
    and how it is computed. The fields after `usage` are there if they are requested, and as those
    of `/v1/completions`."""

    object: str = "chat.completion"
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """An addition to a message: its role at first, then text, nothing at last."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one answer, with its tokens if they are requested."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(TextAnswer, frozen=True, kw_only=True):
    """A chunk of a stream. `usage` is absent, or with `include_usage` null until the last one. The
    prompt's ids, if they are requested, come with an answer's first chunk."""

    object: str = "chat.completion.chunk"
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
