"""A conversation's prompt: checked, admitted, rendered by the model's template."""

from server.generation.chat.conversation import ChatOptions, conversation
from server.schemas.chat import ChatMessage
from server.service.registry import Model
from server.service.service import Service


async def chat_prompt(
    service: Service, model: Model, messages: list[ChatMessage], options: ChatOptions
) -> str:
    """The text that the model is to go on from; its special tokens are spelled out in it.

    Raises APIError: a message at fault, a house that is full, a template that refuses.
    """
    chat = conversation(messages, options, model.chat.template)
    size = sum(len(message.get("content", "")) for message in chat.messages)
    with service.admission.admit(rows=1, tokens=size):
        return await model.chat.render(chat)
