"""A conversation's prompt: checked, admitted, rendered by the model's template."""

from server.generation.chat.conversation import ChatOptions, conversation, num_characters
from server.metrics.request_record import RequestRecord
from server.schemas.chat import ChatMessage
from server.service.registry import Model
from server.service.service import Service
from server.service.time_limit import within_limit
from server.templates.protocol import frame


async def chat_prompt(
    service: Service,
    record: RequestRecord,
    model: Model,
    messages: list[ChatMessage],
    options: ChatOptions,
) -> str:
    """The text for the model to continue, special tokens written out.

    The whole conversation is counted until its prompt is known. Raises RefusalError: a message at
    fault, texts far beyond what the model takes, too much in flight, a template that refuses, or
    that too many wait for, no time.
    """
    model.text_bound.check_length(num_characters(messages), "messages")
    # What waits is the frame alone: messages without any text are many times its size in memory.
    parsed = await conversation(messages, options, model.chat.template)
    question = frame(parsed)
    del parsed
    key = record.client.share
    with service.admission.of(model.name).admit(rows=1, tokens=len(question), key=key.number):
        rendering = model.chat.prompt_of(question, key)
        prompt = await within_limit(service.limits, record, rendering)
    model.text_bound.check(prompt, "messages")
    return prompt
