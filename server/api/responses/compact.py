"""`/v1/responses/compact`: a conversation that goes on from a summary."""

import time

from fastapi import Request
from msgspec.structs import replace

from server.api.chat import chat_plan
from server.api.declaration import answers
from server.api.responses.answer import response_usage
from server.api.responses.conversation import text_parts
from server.api.responses.objects import CompactedResponse, InputText, KeptMessage, SummaryItem
from server.api.responses.requests import CompactRequest, ResponseItem, ResponsePrompt
from server.api.responses.responses import asked_of_chat, create_response
from server.api.responses.stored import items_before
from server.generation.generation import generate
from server.generation.signed_reasoning import SignedReasoning
from server.schemas.common import invalid
from server.service.endpoint import Endpoint
from server.service.service import Model, record_of, service_of

_MOST_TOKENS = 4096


@answers(Endpoint("POST", "/v1/responses/compact", "OpenAI", variant_of=create_response, order=27))
async def compact_conversation(
    request: Request, body: CompactRequest, model: Model
) -> CompactedResponse:
    """Replace a conversation by its messages of users and the system, and a summary of it all."""
    items = await _window(request, body)
    prompt = ResponsePrompt(input=items, instructions=body.instructions)
    asked = await asked_of_chat(request, prompt, summarize=True)
    most = body.max_output_tokens or _MOST_TOKENS
    # A sampled one would differ each time.
    greedy = replace(asked.request, temperature=0)
    unique = service_of(request).new_id("resp").replace("-", "_").removeprefix("resp_")
    with asked.fields.named(record_of(request)):
        plan = await chat_plan(
            greedy,
            request,
            model,
            most_tokens=most,
            most_reasoning=most // 2,
            may_lose_reasoning=True,
        )
        async with generate(request, model, plan) as generation:
            (piece,) = await generation.final_pieces()
    sealed = SignedReasoning.of(request).seal(piece.text)
    summary = SummaryItem(id=f"cmp_{unique}", encrypted_content=sealed)
    return CompactedResponse(
        id=f"resp_{unique}",
        created_at=int(time.time()),
        output=[*_kept(items, unique), summary],
        usage=response_usage(generation.usage()),
    )


async def _window(request: Request, body: CompactRequest) -> list[ResponseItem]:
    """The items of the whole conversation. Raises RefusalError if there are none."""
    given = body.input or []
    items = [ResponseItem(role="user", content=given)] if isinstance(given, str) else given
    if body.previous_response_id is not None:
        return await items_before(request, body.previous_response_id) + items
    if not items:
        raise invalid("input", "is required, or `previous_response_id`")
    return items


def _kept(items: list[ResponseItem], unique: str) -> list[KeptMessage]:
    kept: list[KeptMessage] = []
    for item in items:
        if (item.type or "message") == "message" and item.role not in (None, "assistant"):
            texts = [InputText(text=part.text or "") for part in text_parts(item.content or "", "")]
            name = f"msg_{unique}_{len(kept)}"
            kept.append(KeptMessage(id=name, role=item.role, content=texts))
    return kept
