"""Reads the input of a request for vectors or labels: texts, token ids, or a conversation."""

from typing import TypeVar

import msgspec
from fastapi import Request

from server.generation.conversation import ChatOptions, chat_prompt
from server.schemas.common import invalid
from server.schemas.input_or_chat import InputOrChatRequest
from server.service.inputs import Items, parse_items
from server.service.service import Model
from server.settings.settings import Limits

Body = TypeVar("Body", bound=InputOrChatRequest)
_NOT_BESIDE_CHATS = ("input", "prompt_name", "input_type")
_OF_CHATS = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")


async def rendered(request: Request, body: Body, model: Model) -> tuple[Body, str]:
    """`body` with the prompt of its messages, if it has any, as input, and the field that this is
    from. Raises RefusalError."""
    if body.messages is None:
        return body, "input"
    for name in _NOT_BESIDE_CHATS:
        if getattr(body, name, None) is not None:
            raise invalid(name, "not together with messages")
    options = ChatOptions(
        add_generation_prompt=bool(body.add_generation_prompt),
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs or {},
    )
    text = await chat_prompt(request, model, body.messages, options)
    # Templates write the special tokens themselves.
    special = bool(body.add_special_tokens)
    return msgspec.structs.replace(body, input=text, add_special_tokens=special), "messages"


def input_items(body: InputOrChatRequest, field: str, model: Model, limits: Limits) -> Items:
    """The items of a rendered request's input, which is from `field`. Raises RefusalError."""
    if body.input is None:
        raise invalid(field, "this or `messages` is required")
    for name in _OF_CHATS:
        if body.messages is None and getattr(body, name):
            raise invalid(name, "only with messages")
    return parse_items(body.input, field, model, limits.max_inputs)
