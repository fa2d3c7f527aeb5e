"""The answers of `/v1/responses`, and the events by which they come."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.api.responses.requests import (
    ReasoningOptions,
    ResponseTool,
    ResponseToolChoice,
    TextOptions,
)
from server.schemas.chat import TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    """The text of a message."""

    text: str
    """The text."""
    annotations: list[None] = []
    """Always empty."""
    logprobs: list[TokenLogprob] = []
    """An entry for each generated token, if `include` asks for them."""


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_text"):
    """The text of reasoning."""

    text: str
    """The text."""


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """The model's reasoning."""

    id: str
    """Unique name of the item."""
    status: ItemStatus
    """`completed`, or `incomplete` where the answer has been cut."""
    summary: list[None] = []
    """Always empty."""
    content: list[ReasoningText] = []
    """The reasoning, in one part."""
    encrypted_content: str | UnsetType = UNSET
    """The reasoning, encoded and signed, if `include` asks for it."""


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """A message of the model."""

    id: str
    """Unique name of the item."""
    status: ItemStatus
    """`completed`, or `incomplete` where the answer has been cut."""
    role: Literal["assistant"] = "assistant"
    """Always `assistant`."""
    content: list[OutputText] = []
    """The text, in one part."""


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function."""

    id: str
    """Unique name of the item."""
    status: ItemStatus
    """`completed`, or `incomplete` where its arguments are cut or malformed."""
    call_id: str
    """Name of the call, for the item with its output."""
    namespace: str | UnsetType = UNSET
    """The namespace that has the function, if one has."""
    name: str
    """The function's name."""
    arguments: str
    """The arguments, a JSON object in a string."""


class OutputCustomCall(msgspec.Struct, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    """Unique name of the item."""
    status: ItemStatus
    """`completed`, or `incomplete` where its input is cut or malformed."""
    call_id: str
    """Name of the call, for the item with its output."""
    namespace: str | UnsetType = UNSET
    """The namespace that has the tool, if one has."""
    name: str
    """The tool's name."""
    input: str
    """The text that the tool gets."""


OutputItem = OutputReasoning | OutputMessage | OutputCall | OutputCustomCall


class CachedInput(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """Prompt tokens that were in the prefix cache already."""
    cache_write_tokens: int = 0
    """Always 0: writing into the cache is not counted."""


class ReasonedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the generated tokens."""

    reasoning_tokens: int
    """Tokens that came while the model's reasoning was open, its closing marker included."""


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Exact counts of tokens."""

    input_tokens: int
    """Tokens of the prompt, special tokens included."""
    input_tokens_details: CachedInput
    """More about the prompt's tokens."""
    output_tokens: int
    """Generated tokens."""
    output_tokens_details: ReasonedOutput
    """More about the generated tokens."""
    total_tokens: int
    """The sum of both."""


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens", "timeout"]
    """What has cut the answer: `timeout` is the server's longest time."""


class ResponseFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stream has failed."""

    code: str
    """The error's code, one of a fixed list."""
    message: str
    """The fault, in a sentence."""


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/responses`."""

    id: str
    """Unique name of the answer."""
    object: Literal["response"] = "response"
    """Always `response`."""
    created_at: int
    """When the request came, in seconds since 1970."""
    completed_at: int | None = None
    """When the answer was complete, in seconds since 1970; else null."""
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    """`completed`, or `incomplete`; before a stream's end `in_progress`, after a failure
    `failed`."""
    error: ResponseFailure | None = None
    """Why a stream has failed, or null."""
    incomplete_details: IncompleteDetails | None = None
    """Why the answer is incomplete, or null."""
    model: str
    """The first of the model's names."""
    output: list[OutputItem] = []
    """What the model wrote, in its order."""
    usage: ResponseUsage | None = None
    """Counts of tokens; null before a stream's end."""
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningOptions
    safety_identifier: str | None
    service_tier: str
    text: TextOptions
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice
    tools: list[ResponseTool]
    top_logprobs: int
    truncation: str
    user: str | None
    """The request's, or what it means by leaving it out; `tools` without those that were left
    out."""
    temperature: float
    top_p: float
    frequency_penalty: float
    presence_penalty: float
    """The values that were used."""
    background: bool = False
    """Always false."""
    store: bool = False
    """Whether the answer is stored."""


EventType = Literal[
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.output_item.done",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "error",
]


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    type: EventType
    """The event's name: what begins, goes on or ends."""
    sequence_number: int
    """Number of the event, from 0."""
    response: ResponseObject | UnsetType = UNSET
    """The answer so far."""
    output_index: int | UnsetType = UNSET
    """Number of the item in the output, from 0."""
    item: OutputItem | UnsetType = UNSET
    """The item that begins or ends."""
    item_id: str | UnsetType = UNSET
    """Unique name of the item."""
    content_index: int | UnsetType = UNSET
    """Number of the part in the item: 0."""
    part: OutputText | ReasoningText | UnsetType = UNSET
    """The part that begins or ends."""
    delta: str | UnsetType = UNSET
    """What is added."""
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    """Log-probabilities of the tokens that it comes from, if requested."""
    text: str | UnsetType = UNSET
    """The whole text."""
    arguments: str | UnsetType = UNSET
    """The whole arguments."""
    input: str | UnsetType = UNSET
    """The whole input."""
    code: str | UnsetType = UNSET
    """The error's code, one of a fixed list."""
    message: str | UnsetType = UNSET
    """The fault, in a sentence."""
    param: str | UnsetType | None = UNSET
    """The field of the request that is at fault, or null."""


class InputTokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    """Always `response.input_tokens`."""
    input_tokens: int
    """Tokens of the prompt, special tokens included."""


class InputText(msgspec.Struct, frozen=True, kw_only=True, tag="input_text"):
    """A part of a message that is kept."""

    text: str
    """The text."""


class KeptMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """A message of the conversation, as it came."""

    id: str
    """Unique name of the item."""
    status: Literal["completed"] = "completed"
    """Always `completed`."""
    role: Literal["user", "system", "developer"]
    """Whose it is."""
    content: list[InputText]
    """Its parts."""


class SummaryItem(msgspec.Struct, frozen=True, kw_only=True, tag="compaction"):
    """The model's summary of the conversation."""

    id: str
    """Unique name of the item."""
    encrypted_content: str
    """The summary, encoded and signed."""


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/responses/compact`."""

    id: str
    """Unique name of the answer."""
    object: Literal["response.compaction"] = "response.compaction"
    """Always `response.compaction`."""
    created_at: int
    """When the answer was made, in seconds since 1970."""
    output: list[KeptMessage | SummaryItem]
    """The input of the requests that go on from here."""
    usage: ResponseUsage
    """Counts of tokens."""


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """The response's id."""
    object: Literal["response"] = "response"
    """Always `response`."""
    deleted: bool = True
    """Always true: the response is gone."""


class InputItemQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a response's input."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    """The most items of the answer: 1 to 100; 20 by default."""
    after: str | None = None
    """The id of an item: the list begins behind it."""
    order: Literal["asc", "desc"] = "desc"
    """`desc`, the last first, or `asc`."""


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a response's own input."""

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[dict[str, Any]]
    """The items, as the request had them, each with an `id`."""
    first_id: str | None
    """Id of the first of them, or null."""
    last_id: str | None
    """Id of the last of them, or null: `after` it the next page begins."""
    has_more: bool
    """Whether there is a next page."""
