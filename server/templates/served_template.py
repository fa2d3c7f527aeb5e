"""A template as its process serves it: with the format of its turns, and whatever tools need."""

from functools import cached_property

from msgspec.structs import replace

from server.templates.call_ids import with_ids_of
from server.templates.formats import find_format
from server.templates.loaded_template import LeftOutError, LoadedTemplate, UnfitFieldError
from server.templates.protocol import ChatTemplate, Conversation
from server.templates.tools_as_text import as_text
from server.templates.turn_writer import TurnWriter
from server.turns.known_formats import knows_tools


class ServedTemplate:
    """Renders prompts of conversations with and without tools."""

    def __init__(self, template: ChatTemplate) -> None:
        """Raises TemplateError. May take any time and memory, as prompts may."""
        self._loaded = LoadedTemplate(template)
        self.found = find_format(self._loaded)

    def prompt(self, conversation: Conversation) -> str:
        """The prompt of a client's messages. Raises UnfitFieldError, TemplateError for a refusal,
        and whatever else the template raises."""
        if conversation.tools:
            self._check_tools()
        if conversation.tools or any(each.get("tool_calls") for each in conversation.messages):
            conversation = self._fitted(conversation)
        return self._loaded.prompt(conversation)

    def _check_tools(self) -> None:
        if self.found.form is None:
            reason = f"this model cannot call tools: {self.found.reason}"
            raise UnfitFieldError("tools", reason)
        if knows_tools(self._loaded.source) and self._leaves_out_tools:
            raise LeftOutError("tools", "tools")

    def _fitted(self, conversation: Conversation) -> Conversation:
        """A conversation with tools or calls in a form that the template takes."""
        if not knows_tools(self._loaded.source):
            return as_text(conversation, has_system=self._loaded.manners.writes_system)
        if self.found.form is None:
            return conversation
        ids = self.found.form.ids
        return replace(conversation, messages=with_ids_of(ids, conversation.messages))

    @cached_property
    def _leaves_out_tools(self) -> bool:
        return TurnWriter(self._loaded).leaves_out_tools()
