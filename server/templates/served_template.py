"""A template as its process serves it: with the format of its turns, and whatever tools need."""

from functools import cached_property

from msgspec.structs import replace

from server.templates.call_ids import with_ids_of
from server.templates.formats import find_format
from server.templates.loaded_template import (
    REASONING_FIELDS,
    LoadedTemplate,
    UnfitFieldError,
    reasoning_name,
)
from server.templates.protocol import ChatTemplate, Conversation, Message, Rendered
from server.templates.tools_as_text import (
    with_calls_as_text,
    with_results_as_text,
    with_tools_as_text,
)
from server.templates.turn_writer import SAMPLE_TOOLS, TurnWriter
from server.turns.known_formats import knows_tools


class ServedTemplate:
    """Renders prompts of conversations with and without tools."""

    def __init__(self, template: ChatTemplate) -> None:
        """Raises TemplateError. May take any time and memory, as prompts may."""
        self._loaded = LoadedTemplate(template)
        self.found = find_format(self._loaded)

    def rendered(self, conversation: Conversation) -> Rendered:
        """The prompt of a client's messages. Raises UnfitFieldError, TemplateError for a refusal,
        and whatever else the template raises."""
        left_out = ""
        if conversation.may_lose_reasoning:
            left_out = self._loaded.lost_reasoning(conversation)
        if left_out:
            messages = [*map(_without_reasoning, conversation.messages)]
            conversation = replace(conversation, messages=messages)
        return Rendered(self._prompt(conversation), left_out)

    def _prompt(self, conversation: Conversation) -> str:
        if conversation.tools and self.found.form is None:
            reason = f"this model cannot call tools: {self.found.reason}"
            raise UnfitFieldError("tools", reason)
        if conversation.tools or any(each.get("tool_calls") for each in conversation.messages):
            conversation = self._fitted(conversation)
        return self._loaded.prompt(conversation)

    def _fitted(self, conversation: Conversation) -> Conversation:
        """A conversation with tools or calls in a form that the template takes."""
        form, tools = self.found.form, conversation.tools
        if form is None:
            return conversation
        calls, manners = form.calls[0], self._loaded.manners
        messages = with_ids_of(form.ids, conversation.messages)
        if manners.leave_out_calls and not (tools and self._writes_calls_beside_tools):
            messages = with_calls_as_text(messages, calls)
        if manners.leave_out("tool") or not knows_tools(self._loaded.source):
            messages = with_results_as_text(messages)
        if tools and self._leaves_out_tools:
            has_system = manners.leave_out("system", is_first=True) is False
            messages = with_tools_as_text(messages, tools, calls, has_system=has_system)
            tools = None
        return replace(conversation, messages=messages, tools=tools)

    @cached_property
    def _writes_calls_beside_tools(self) -> bool:
        return not self._loaded.manners_with({}, SAMPLE_TOOLS).leave_out_calls

    @cached_property
    def _leaves_out_tools(self) -> bool:
        return TurnWriter(self._loaded).leaves_out_tools()


def _without_reasoning(message: Message) -> Message:
    """The message as if its author had not thought. One that has only thought says nothing."""
    if reasoning_name(message) is None:
        return message
    rest = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    return rest if rest.get("tool_calls") else {"content": "", **rest}
