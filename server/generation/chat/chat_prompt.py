"""A conversation's prompt: checked, and rendered by the model's template."""

from starlette.requests import Request

from server.generation.chat.conversation import ChatOptions, conversation, num_characters
from server.schemas.chat import ChatMessage
from server.service.registry import Model
from server.service.service import record_of, service_of
from server.service.time_limit import within_limit
from server.templates.protocol import frame


async def chat_prompt(
    request: Request, model: Model, messages: list[ChatMessage], options: ChatOptions
) -> str:
    """The text for the model to continue, special tokens written out.

    The whole conversation is held until its prompt is known. Raises RefusalError: a message at
    fault, texts far beyond what the model takes, no room, a template that refuses, no time.
    """
    model.text_bound.check_length(num_characters(messages), "messages")
    # What waits is the frame alone: messages without any text are many times its size in memory.
    parsed = await conversation(messages, options, model.chat.template)
    question = frame(parsed)
    del parsed
    service, record = service_of(request), record_of(request)
    key = record.client.share
    with (
        service.in_flight,
        service.ledger.account(key.number, "a conversation that waits for its template") as account,
    ):
        account.hold(len(question))
        rendering = model.chat.prompt_of(question, key)
        prompt = await within_limit(service.limits, record, rendering)
    model.text_bound.check(prompt, "messages")
    return prompt
