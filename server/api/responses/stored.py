"""Stored responses: what is kept of an answer, and the endpoints that show it."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.api.declaration import answers
from server.api.responses.answer import Keep
from server.api.responses.objects import (
    DeletedResponse,
    InputItemQuery,
    InputItems,
    ResponseObject,
)
from server.api.responses.requests import ResponseItem, ResponsesRequest
from server.batches.state.stored_responses import StoredResponse
from server.errors import quoted
from server.schemas.common import invalid
from server.service.endpoint import Endpoint, operation
from server.service.service import service_of
from server.service.stored import in_state, stored_of

_KEPT_SECONDS = 30 * 24 * 3600
ResponseId = Annotated[str, "The response's id."]


class _Output(msgspec.Struct, frozen=True):
    """The part of an answer that the next request gets."""

    output: list[ResponseItem]


async def items_before(request: Request, response_id: str) -> list[ResponseItem]:
    """The conversation up to a response that is stored, or the last of the request's WebSocket.
    Raises RefusalError if there is none."""
    field = "previous_response_id"
    service = service_of(request)
    most = service.limits.max_body_size
    (recent, stored), line = _recent(request, response_id), list[StoredResponse]()
    # A WebSocket needs no state folder to continue its own.
    if stored is not None and ("recent" not in request.scope or service.state is not None):
        with _naming(field):
            state, owner = stored_of(request)
            line = await in_state(state.responses.line, stored, owner, most)
    if stored is not None and not line:
        message = f"{field}: there is no response {quoted(stored)}"
        raise RefusalError("previous_response_not_found", message, field)
    if len(recent) + sum(each.bytes for each in line) > most:
        message = f"{field}: the conversation has more than {most} bytes (--max-body-size)"
        raise RefusalError("too_large", message, field)
    items: list[ResponseItem] = []
    for each in line:
        items += msgspec.json.decode(each.input, type=list[ResponseItem])
        items += msgspec.json.decode(each.answer, type=_Output).output
    items += msgspec.json.decode(recent, type=list[ResponseItem])
    return items


def _recent(request: Request, response_id: str | None) -> tuple[bytes, str | None]:
    """The items up to a response that only the request's WebSocket remembers, and the stored
    response before these. Any other has no such items, and is the stored one itself."""
    return request.scope.get("recent", {}).get(response_id, (b"[]", response_id))


async def keeper(request: Request, body: ResponsesRequest) -> Keep | None:
    """Stores the answer to a request, which asks for it or leaves it to the server. Raises
    RefusalError where one that asks cannot be stored."""
    service = service_of(request)
    if body.store is False:
        return None
    try:
        with _naming("store"):
            state, owner = stored_of(request)
            if await in_state(state.used_bytes, owner) >= service.limits.max_stored_size:
                message = "nothing is left of what you may store; delete responses or files"
                raise RefusalError("quota_exceeded", message)
    except RefusalError:
        if body.store:
            raise
        return None

    async def keep(answer: ResponseObject) -> bool:
        recent, parent = _recent(request, body.previous_response_id)
        given = msgspec.json.encode(_items(body, answer.id, recent)).decode()
        written = msgspec.json.encode(answer).decode()
        stored = StoredResponse(
            id=answer.id,
            owner=owner,
            parent=parent,
            input=given,
            answer=written,
            bytes=len(given) + len(written),
            created_at=answer.created_at,
            expires_at=int(time.time()) + _KEPT_SECONDS,
        )
        try:
            with _naming("store"):
                await in_state(state.responses.add, stored)
        except RefusalError:
            if body.store:
                raise
            return False
        return True

    return keep


@contextmanager
def _naming(field: str) -> Generator[None]:
    """A block whose failures are the `field`'s. Raises RefusalError."""
    try:
        yield
    except RefusalError as error:
        raise replace(error, message=f"{field}: {error.message}", param=field) from None


def _items(body: ResponsesRequest, answer_id: str, recent: bytes) -> list[dict[str, Any]]:
    """The request's own items as they are listed, each with an id and a type, after those that are
    stored nowhere else."""
    text = {"role": "user", "content": body.input}
    items = [text] if isinstance(body.input, str) else msgspec.to_builtins(body.input)
    items = [*msgspec.json.decode(recent), *items]
    return [_item(item, f"{answer_id}_{number}") for number, item in enumerate(items)]


def _item(item: dict[str, Any], unique: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    name = {"id": f"item_{unique}", "type": kind}
    given = {key: value for key, value in item.items() if value is not None}
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        type_of_text = "output_text" if item["role"] == "assistant" else "input_text"
        given["content"] = [{"type": type_of_text, "text": content}]
    return name | given


@answers(
    Endpoint("GET", "/v1/responses/{response}", "OpenAI", order=24),
    operation(ResponseObject, path={"response": "The response's id."}),
)
async def get_response(request: Request, response: ResponseId) -> Response:
    """A stored response."""
    found = await _known(request, response)
    return Response(found.answer, media_type="application/json")


@answers(Endpoint("DELETE", "/v1/responses/{response}", "OpenAI", order=25))
async def delete_response(request: Request, response: ResponseId) -> DeletedResponse:
    """Delete a stored response. Those that continue it keep its items."""
    state, owner = stored_of(request)
    if not await in_state(state.responses.delete, response, owner):
        raise _unknown(response)
    return DeletedResponse(id=response)


@answers(Endpoint("GET", "/v1/responses/{response}/input_items", "OpenAI", order=26))
async def list_input_items(
    request: Request, response: ResponseId, query: InputItemQuery
) -> InputItems:
    """The items of a stored response's own input, the last first or by `order`."""
    found = await _known(request, response)
    items = msgspec.json.decode(found.input, type=list[dict[str, Any]])
    if query.order == "desc":
        items.reverse()
    names = [item["id"] for item in items]
    if query.after is not None and query.after not in names:
        raise invalid("after", f"there is no {quoted(query.after)}")
    begin = 0 if query.after is None else names.index(query.after) + 1
    data = items[begin : begin + query.limit]
    return InputItems(
        data=data,
        first_id=data[0]["id"] if data else None,
        last_id=data[-1]["id"] if data else None,
        has_more=begin + len(data) < len(items),
    )


async def _known(request: Request, response_id: str) -> StoredResponse:
    """Raises RefusalError if there is no such response."""
    state, owner = stored_of(request)
    found = await in_state(state.responses.get, response_id, owner)
    if found is None:
        raise _unknown(response_id)
    return found


def _unknown(response_id: str) -> RefusalError:
    return RefusalError("not_found", f"there is no response {quoted(response_id)}", "response")
