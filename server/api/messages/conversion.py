"""From a request of `/v1/messages` to one of chat, and from chat's errors to its fields."""

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from server.api.messages.requests import (
    AnyChoice,
    AutoChoice,
    Block,
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    MessagesTool,
    NamedChoice,
    NoChoice,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ThinkingDisabled,
    ToolResultBlock,
    ToolUseBlock,
)
from server.api.own_fields import OwnFields
from server.errors import quoted
from server.generation.signed_reasoning import SignedReasoning
from server.schemas.chat import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    Function,
    FunctionCall,
    FunctionChoice,
    Tool,
    ToolCall,
    ToolChoice,
)
from server.schemas.common import as_object, invalid
from server.schemas.sampling import JsonSchema, NamedSchema

# Claude Code sends one that changes with each request: nothing behind it would be cached.
_BILLING = "x-anthropic-billing-header"
_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
_FIELDS = {
    "response_format.json_schema.schema": "output_config.format.schema",
    "tool_choice.function.name": "tool_choice.name",
    "continue_final_message": "messages",
    "chat_template_kwargs": "thinking",
    "stop": "stop_sequences",
}

BlockT = TypeVar("BlockT", bound=Block)


class _Turns:
    """Messages of chat, made of blocks in their order. `paths` are the request's fields for those
    of the messages."""

    def __init__(self, reasoning: SignedReasoning) -> None:
        self.messages: list[ChatMessage] = []
        self.paths: dict[str, str] = {}
        self.left_out: list[str] = []
        self._reasoning = reasoning
        self._parts: list[ContentPart] = []
        self._calls: list[ToolCall] = []

    def add_system(self, system: str | Sequence[TextBlock]) -> None:
        for block in _blocks(system):
            if not block.text.startswith(_BILLING):
                self._add(block, "system", "system", "system")

    def add(self, message: InputMessage, path: str) -> None:
        """Raises RefusalError for a block that is not this role's."""
        for number, block in enumerate(_blocks(message.content)):
            at = f"{path}.content"
            if not isinstance(message.content, str):
                at += f"[{number}]"
            if (kind := type(block).__struct_config__.tag) not in _BLOCKS[message.role]:
                raise invalid(f"{at}.type", f"{quoted(kind)} is none of {message.role} messages")
            if isinstance(block, ToolResultBlock):
                self._add_result(block, at)
            else:
                self._add(block, message.role, path, at)

    def _add(self, block: Block, role: str, path: str, at: str) -> None:
        if not self.messages or self.messages[-1].role != role:
            self._parts, self._calls = [], []
            # The lists grow with the turn.
            turn = ChatMessage(role=role, content=self._parts, tool_calls=self._calls)
            self._begin(turn, path)
        match block:
            case TextBlock(text=text):
                self._parts.append(_text_part(text))
                self._name("content", at)
            case ThinkingBlock(thinking=shown, signature=sealed):
                self._add_reasoning(sealed, shown, at)
            case RedactedThinkingBlock(data=sealed):
                self._add_reasoning(sealed, "", at)
            case ToolUseBlock(id=name):
                arguments = msgspec.json.encode(block.input).decode()
                function = FunctionCall(name=block.name, arguments=arguments)
                number = f"tool_calls[{len(self._calls)}]"
                self._name("tool_calls", at)
                self._name(number, at)
                self._name(f"{number}.function.arguments", f"{at}.input")
                self._calls.append(ToolCall(id=name, function=function))
            case ToolResultBlock():
                pass

    def _add_reasoning(self, sealed: str, shown: str, at: str) -> None:
        text = self._reasoning.opened(sealed, shown)
        if text is None:
            # One of them says enough of a whole conversation with another server.
            self.left_out = self.left_out or [at]
        else:
            self._parts.append(ContentPart(type="thinking", thinking=text))
            self._name("reasoning_content", at)

    def _add_result(self, block: ToolResultBlock, at: str) -> None:
        parts = [_text_part(each.text) for each in _blocks(block.content or "")]
        result = ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=parts)
        self._begin(result, at)
        self._name("tool_call_id", f"{at}.tool_use_id")

    def _begin(self, message: ChatMessage, path: str) -> None:
        self.messages.append(message)
        self.paths[self._last] = path

    def _name(self, field: str, path: str) -> None:
        """Name the last message's field by the first block that it is made of."""
        self.paths.setdefault(f"{self._last}.{field}", path)

    @property
    def _last(self) -> str:
        return f"messages[{len(self.messages) - 1}]"


def _blocks(content: str | Sequence[BlockT]) -> Sequence[BlockT | TextBlock]:
    return [TextBlock(text=content)] if isinstance(content, str) else content


def _text_part(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


class AsChat:
    """A request in chat's form. `left_out` are the paths of what is not in it."""

    def __init__(self, body: CountTokensRequest, reasoning: SignedReasoning) -> None:
        """Raises RefusalError, naming the field."""
        turns = _Turns(reasoning)
        if body.system is not None:
            turns.add_system(body.system)
        for number, message in enumerate(body.messages):
            turns.add(message, f"messages[{number}]")
        offered = _offered(body.tools or [], body.tool_choice)
        paths = _FIELDS | turns.paths
        for number, own in enumerate(offered):
            paths[f"tools[{number}].function"] = f"tools[{own}]"
            paths[f"tools[{number}].function.parameters"] = f"tools[{own}].input_schema"
        numbers = range(len(body.tools or []))
        hosted = [f"tools[{number}]" for number in numbers if number not in offered]
        self.fields = OwnFields("messages", paths, (*turns.left_out, *hosted))
        # Where there is no text, templates get none rather than an empty one.
        messages = [replace(each, content=each.content or None) for each in turns.messages]
        last = messages[-1]
        continues = last.role == "assistant"
        if continues and last.tool_calls:
            path = self.fields.of(f"messages[{len(messages) - 1}]")
            raise invalid(path, "its tool_use has no tool_result")
        self.request = _request(body, messages, [*offered.values()], continues=continues)


_Choice = AutoChoice | AnyChoice | NamedChoice | NoChoice | None


def _offered(tools: Sequence[MessagesTool], choice: _Choice) -> dict[int, Tool]:
    """The tools that have a schema, by their numbers. Raises RefusalError if only tools of other
    types are offered, or one of these is chosen."""
    offered: dict[int, Tool] = {}
    for number, tool in enumerate(tools):
        if tool.type in (None, "custom"):
            offered[number] = _tool(tool, f"tools[{number}]")
    chosen = choice.name if isinstance(choice, NamedChoice) else None
    for number, tool in enumerate(tools):
        if number not in offered and (not offered or tool.name == chosen):
            reason = f"tools of type {quoted(tool.type)} are not served here, only 'custom'"
            raise invalid(f"tools[{number}].type", reason)
    return offered


def _tool(tool: MessagesTool, path: str) -> Tool:
    if tool.input_schema is UNSET:
        raise invalid(f"{path}.input_schema", "is required")
    function = Function(
        name=tool.name,
        description=tool.description,
        parameters=as_object(tool.input_schema, f"{path}.input_schema"),
        strict=tool.strict,
    )
    return Tool(function=function)


def _tool_choice(choice: _Choice) -> Literal["none", "auto", "required"] | ToolChoice | None:
    match choice:
        case NamedChoice(name=name):
            return ToolChoice(function=FunctionChoice(name=name))
        case AnyChoice():
            return "required"
        case NoChoice():
            return "none"
        case AutoChoice() | None:
            return None


def _request(
    body: CountTokensRequest, messages: list[ChatMessage], tools: list[Tool], *, continues: bool
) -> ChatRequest:
    """The request without `max_tokens`."""
    output, choice, thinking = body.output_config, body.tool_choice, body.thinking
    form = None
    if output is not None and output.format is not None:
        schema = as_object(output.format.schema, "output_config.format.schema")
        form = JsonSchema(json_schema=NamedSchema(schema=schema))
    thinks = not isinstance(thinking, ThinkingDisabled)
    variables = {} if thinking is None else {"enable_thinking": thinks, "thinking": thinks}
    is_single = getattr(choice, "disable_parallel_tool_use", None)
    request = ChatRequest(
        messages=messages,
        model=body.model,
        tools=tools,
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=False if is_single else None,
        response_format=form,
        reasoning_effort=None if output is None else output.effort,
        chat_template_kwargs=variables,
        continue_final_message=continues,
    )
    if not isinstance(body, MessagesRequest):
        return request
    return replace(
        request,
        stream=body.stream,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        priority=body.priority,
    )
