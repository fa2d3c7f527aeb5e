"""A conversation's prompt: checked, admitted, rendered by the model's template."""

from server.generation.chat.conversation import ChatOptions, conversation
from server.metrics.request_record import RequestRecord
from server.schemas.chat import ChatMessage
from server.service.registry import Model
from server.service.service import Service
from server.service.time_limit import within_limit


async def chat_prompt(
    service: Service,
    record: RequestRecord,
    model: Model,
    messages: list[ChatMessage],
    options: ChatOptions,
) -> str:
    """The text for the model to continue, special tokens written out.

    Raises APIError: a message at fault, too much in flight, a template that refuses, no time.
    """
    chat = conversation(messages, options, model.chat.template)
    size = sum(len(message.get("content", "")) for message in chat.messages)
    with service.admission.of(model.name).admit(rows=1, tokens=size):
        return await within_limit(service.limits, record, model.chat.prompt_of(chat))
