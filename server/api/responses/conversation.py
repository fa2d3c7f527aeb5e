"""From the items of a request of `/v1/responses` to the messages of a chat."""

import asyncio
import base64
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from server.api.responses.requests import ItemPart, OutputPart, ResponseItem
from server.api.responses.tools import ToolName
from server.errors import quoted
from server.generation.signed_reasoning import SignedReasoning
from server.schemas.chat import ChatMessage, ContentPart, FunctionCall, ToolCall
from server.schemas.common import invalid

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_SYSTEM = ("system", "developer")
_SUMMARIZE = (
    "Summarize our conversation so far, so that it can go on from your summary: what I asked for, "
    "what has been done and found, what is decided, and what is left to do. Write the summary only."
)
_AT_ONCE = 1024
"""Items to read before others have a turn: a body may hold 100,000s."""
ValueT = TypeVar("ValueT")


class _Message(msgspec.Struct):
    """A message as its items come. `has_text`: an assistant's has had its text."""

    role: str
    content: list[ContentPart] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    call_id: str | None = None
    has_text: bool = False

    def as_chat(self) -> ChatMessage:
        without_text = self.role == "assistant" and not self.has_text
        return ChatMessage(
            role=self.role,
            content=None if without_text else self.content,
            reasoning_content="".join(self.reasoning) or None,
            tool_calls=self.calls or None,
            tool_call_id=self.call_id,
        )


class ItemMessages:
    """Makes messages of items.

    What an assistant thought, said and called in one turn is one message. So are the system's
    messages at the beginning, the instructions first: many templates take no second one.

    `paths` are the request's fields for those of the messages, `left_out` the first of those of
    reasoning that is not `signed` here.
    """

    def __init__(self, instructions: str | None, signed: SignedReasoning) -> None:
        self._signed = signed
        self.left_out: list[str] = []
        self.paths = {"messages": "input"}
        self._messages: list[_Message] = []
        if instructions:
            self._say("system", [_part(instructions)], "instructions")

    async def messages(self) -> list[ChatMessage]:
        """The messages, made with other requests in between."""
        made: list[ChatMessage] = []
        for begin in range(0, len(self._messages), _AT_ONCE):
            made += [message.as_chat() for message in self._messages[begin : begin + _AT_ONCE]]
            await asyncio.sleep(0)
        return made

    async def add(self, items: str | Sequence[ResponseItem], path: str) -> None:
        """Add the items of the request's field `path`. Raises RefusalError, naming the field."""
        if isinstance(items, str):
            self._say("user", [_part(items)], path)
        else:
            for number, item in enumerate(items):
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
                self._add(item, f"{path}[{number}]")

    def ask_for_summary(self) -> None:
        """End the conversation by the request for a summary. It is put into the last message if
        that is the user's: many templates take no two in a row."""
        content: list[ContentPart] = []
        while self._messages and self._messages[-1].role == "user":
            content = self._messages.pop().content + content
        self._begin(_Message("user", [*content, _part(_SUMMARIZE)]), "input")

    def _add(self, item: ResponseItem, path: str) -> None:
        match item.type or "message":
            case "compaction":
                self._add_summary(item, path)
            case "message":
                self._add_message(item, path)
            case "reasoning":
                turn = self._turn(path, has_begun=False)
                turn.reasoning += self._reasoning(item, path)
                self.paths.setdefault(f"{self._last}.reasoning_content", path)
            case "function_call" | "custom_tool_call":
                self._add_call(item, path)
            case "function_call_output" | "custom_tool_call_output":
                self._add_result(item, path)
            case other:
                reason = f"items of type {quoted(other)} are not served here"
                raise invalid(f"{path}.type", reason)

    def _reasoning(self, item: ResponseItem, path: str) -> list[str]:
        if item.encrypted_content is not None:
            text = self._signed.opened(item.encrypted_content)
            if text is not None:
                return [text]
            # One of them says enough of a whole conversation with another server.
            self.left_out = self.left_out or [f"{path}.encrypted_content"]
        parts = text_parts(item.content or item.summary or (), f"{path}.content")
        return [part.text or "" for part in parts]

    def _add_summary(self, item: ResponseItem, path: str) -> None:
        """Raises RefusalError for one from elsewhere: without it the conversation would be lost."""
        sealed = _given(item.encrypted_content, f"{path}.encrypted_content")
        summary = self._signed.opened(sealed)
        if summary is None:
            raise invalid(f"{path}.encrypted_content", "is no summary of this server's")
        self.ask_for_summary()
        self._begin(_Message("assistant", [_part(summary)], has_text=True), path)

    def _add_message(self, item: ResponseItem, path: str) -> None:
        role = _given(item.role, f"{path}.role")
        content = [*text_parts(_given(item.content, f"{path}.content"), f"{path}.content")]
        if role != "assistant":
            self._say(role, content, path)
            return
        turn = self._turn(path, has_begun=False)
        turn.has_text, turn.content = True, content
        self.paths[f"{self._last}.content"] = f"{path}.content"

    def _add_call(self, item: ResponseItem, path: str) -> None:
        name = ToolName(_given(item.name, f"{path}.name"), item.namespace).of_function
        arguments = item.arguments or "{}"
        if item.type == "custom_tool_call":
            text = _given(item.input, f"{path}.input")
            arguments = msgspec.json.encode({"input": text}).decode()
        turn = self._turn(path, has_begun=True)
        number = f"{self._last}.tool_calls[{len(turn.calls)}]"
        self.paths[number] = self.paths[f"{number}.function"] = path
        self.paths.setdefault(f"{self._last}.tool_calls", path)
        function = FunctionCall(name=name, arguments=arguments)
        turn.calls.append(ToolCall(id=_given(item.call_id, f"{path}.call_id"), function=function))

    def _add_result(self, item: ResponseItem, path: str) -> None:
        content = [*text_parts(_given(item.output, f"{path}.output"), f"{path}.output")]
        call_id = _given(item.call_id, f"{path}.call_id")
        self._begin(_Message("tool", content, call_id=call_id), path)
        self.paths[f"{self._last}.tool_call_id"] = f"{path}.call_id"

    def _turn(self, path: str, *, has_begun: bool) -> _Message:
        """The assistant's turn that an item goes on with, or a new one. It may have text and calls
        if it `has_begun`."""
        if self._messages:
            last = self._messages[-1]
            if last.role == "assistant" and (has_begun or not (last.has_text or last.calls)):
                return last
        return self._begin(_Message("assistant"), path)

    def _say(self, role: str, content: list[ContentPart], path: str) -> None:
        if role in _SYSTEM and len(self._messages) == 1 and self._messages[0].role in _SYSTEM:
            self._messages[0].content += content
        else:
            self._begin(_Message(role, content), path)

    def _begin(self, message: _Message, path: str) -> _Message:
        self._messages.append(message)
        self.paths[self._last] = path
        return message

    @property
    def _last(self) -> str:
        return f"messages[{len(self._messages) - 1}]"


def _given(value: ValueT | None, path: str) -> ValueT:
    if value is None:
        raise invalid(path, "is required")
    return value


def _part(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


def text_parts(content: str | Sequence[OutputPart], path: str) -> Iterator[ContentPart]:
    """Yield the parts as texts. Raises RefusalError for a part that is none."""
    if isinstance(content, str):
        yield _part(content)
        return
    for number, part in enumerate(content):
        if isinstance(part, ItemPart) and part.type == "refusal":
            yield _part(_given(part.refusal, f"{path}[{number}].refusal"))
        elif isinstance(part, ItemPart) and part.type == "input_file":
            yield _part(_text_of_file(part.file_data, f"{path}[{number}].file_data"))
        elif part.type in _TEXTS:
            yield _part(_given(part.text, f"{path}[{number}].text"))
        else:
            reason = f"parts of type {quoted(part.type)} are not served here, only text"
            raise invalid(f"{path}[{number}].type", reason)


def _text_of_file(data: str | None, path: str) -> str:
    """Raises RefusalError for anything but text."""
    kind, _, encoded = _given(data, path).partition(";base64,")
    if not kind.startswith("data:text/"):
        raise invalid(path, "only files of text are served: data:text/plain;base64,...")
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        raise invalid(path, "is no UTF-8 in base64") from None
