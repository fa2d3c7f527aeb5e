"""`/v2/chat`: a conversation's next message, as Cohere answers."""

import msgspec
from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.api.chat import CHAT_COMPLETIONS, chat_error, chat_plan
from server.cohere.chat_answer import CohereAnswer
from server.cohere.chat_translation import as_chat_request, in_cohere_words
from server.generation.generation import generate
from server.generation.plan import GenerationPlan
from server.http.body import Body
from server.http.disconnect import CancelOnDisconnect
from server.http.openapi import operation
from server.http.sse import EventStream
from server.metrics.request_record import record_of
from server.schemas.cohere.chat_request import CohereChat, CohereChatEvent, CohereChatRequest
from server.service.endpoint import Endpoint
from server.service.service import json_answer, service_of

CHAT = Endpoint(
    "POST",
    "/v2/chat",
    operation(CohereChat, CohereChatRequest, chunk=CohereChatEvent),
    variant_of=CHAT_COMPLETIONS,
    order=21,
)
_body = Body(CohereChatRequest)


@CHAT.answered_by
async def chat(request: Request) -> Response:
    """Answer a conversation in Cohere's shapes, in one piece or as a stream of its events."""
    service, record = service_of(request), record_of(request)
    body = await _body.read(request, service.limits.max_body_size)
    model = service.find(record, body.model, CHAT_COMPLETIONS, body.priority or 0)
    asked = as_chat_request(body)
    with CancelOnDisconnect(request.receive):
        try:
            plan = _lowered_to_fit(await chat_plan(asked, service, record, model))
            generating = generate(service, record, model, plan)
            answer = CohereAnswer(service.new_id("chat"), model, logprobs=bool(body.logprobs))
            if body.stream:
                return await EventStream.begin(answer.events(generating))
            return json_answer(await answer.whole(generating))
        except RefusalError as error:
            raise in_cohere_words(chat_error(error, asked)) from None


def _lowered_to_fit(plan: GenerationPlan) -> GenerationPlan:
    """With as many tokens as there is room for, where the request has asked for more."""
    lowered = plan.params.max_tokens is not None
    params = msgspec.structs.replace(plan.params, lowered_to_fit=lowered)
    return msgspec.structs.replace(plan, params=params)
