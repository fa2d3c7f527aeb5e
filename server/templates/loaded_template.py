"""A template that has been compiled and probed."""

from typing import Any

from msgspec.structs import replace

from server.templates.jinja import compile_template, render
from server.templates.messages.kinds import Message
from server.templates.messages.manners import ProbedManners
from server.templates.messages.shaping import LeftOutError, shaped_messages
from server.templates.protocol import ChatTemplate, Conversation


class LoadedTemplate:
    """Writes prompts of which every message is a part."""

    def __init__(self, template: ChatTemplate) -> None:
        """Raises TemplateError; may take any time and memory, as prompts may."""
        self._template = template
        self._compiled = compile_template(template.source)
        self.manners = self._probed({})

    def prompt(self, conversation: Conversation) -> str:
        """The prompt of a client's messages. Raises LeftOutError, and whatever the template does:
        TemplateError where it refuses."""
        return self._render(replace(conversation, messages=self.shaped(conversation)))

    def shaped(self, conversation: Conversation) -> list[Message]:
        """The messages in the forms that the template takes. Raises LeftOutError."""
        try:
            return shaped_messages(conversation.messages, self.manners)
        except LeftOutError:
            if not conversation.variables:
                raise
        # A variable may have the template write what it otherwise leaves out.
        return shaped_messages(conversation.messages, self._probed(conversation.variables))

    def _probed(self, variables: dict[str, Any]) -> ProbedManners:
        return ProbedManners(
            lambda messages: self._render(Conversation(messages=messages, variables=variables))
        )

    def _render(self, conversation: Conversation) -> str:
        prompt = render(self._compiled, self._template, conversation)
        prompt.encode()
        return prompt
