"""`/v1/batches`: uploaded files of requests, answered when there is room."""

import time
from typing import Annotated, Literal

import msgspec
from fastapi import Request, Response
from msgspec import Meta

from engine_core.refusal import RefusalError
from server.api.files import BatchListQuery, KeptSeconds, ObjectList
from server.echoed import quoted
from server.http.body import Body
from server.http.query import query_of
from server.service.endpoint import Endpoint, operation
from server.service.service import json_answer
from server.service.stored import in_state, page_of, stored_of
from server.state.database import Page
from server.state.stored_batches import BatchError, Status, StoredBatch
from server.state.stored_files import new_id

BatchEndpoint = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/rerank"]


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True):
    """How long a file is kept: `seconds` from its creation."""

    anchor: Literal["created_at"]
    seconds: KeptSeconds


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Answer every line of an uploaded file, each of which is a request to `endpoint`."""

    input_file_id: str
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


class RequestCounts(msgspec.Struct, frozen=True):
    """Lines in all, answered well, and failed."""

    total: int
    completed: int
    failed: int


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Why the batch failed."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are in seconds since 1970, `NAME_at` when it took that status; what is not
    done by `expires_at` will not be. The output file has the answers, the error file what failed;
    each is null where it would be empty."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(ObjectList[BatchObject], frozen=True, kw_only=True):
    """A page of batches, newest first. With `has_more`, the next one is behind `last_id`."""


_WINDOW_SECONDS = 24 * 3600

CREATE_BATCH = Endpoint("POST", "/v1/batches", operation(BatchObject, BatchRequest), order=81)
LIST_BATCHES = Endpoint("GET", "/v1/batches", operation(BatchList, query=BatchListQuery), order=82)
GET_BATCH = Endpoint("GET", "/v1/batches/{batch}", operation(BatchObject), order=83)
CANCEL_BATCH = Endpoint("POST", "/v1/batches/{batch}/cancel", operation(BatchObject), order=84)
_body = Body(BatchRequest)
_errors = msgspec.json.Decoder(list[BatchError])
_metadata = msgspec.json.Decoder(dict[str, str] | None)


@CREATE_BATCH.answered_by
async def create_batch(request: Request) -> Response:
    """Answer every line of an uploaded file, below the priority of all other requests."""
    state, owner = stored_of(request)
    body = await _body.read(request)
    file = await in_state(state.files.get, body.input_file_id, owner)
    if file is None or file.purpose != "batch":
        message = f"input_file_id: no file {quoted(body.input_file_id)} for batches"
        raise RefusalError("invalid_request", message, "input_file_id")
    now, kept = int(time.time()), body.output_expires_after
    batch = StoredBatch(
        id=new_id("batch"),
        owner=owner,
        endpoint=body.endpoint,
        input_file_id=file.id,
        completion_window=body.completion_window,
        metadata=msgspec.json.encode(body.metadata).decode(),
        output_seconds=None if kept is None else kept.seconds,
        created_at=now,
        expires_at=now + _WINDOW_SECONDS,
    )
    await in_state(state.batches.add, batch)
    return json_answer(_shown(batch))


@LIST_BATCHES.answered_by
async def list_batches(request: Request) -> Response:
    """The client's batches, newest first; `limit` of them, behind `after`."""
    state, owner = stored_of(request)
    query = query_of(request, BatchListQuery)
    page = Page(query.limit, query.after, newest_first=True)
    found = await page_of(page, lambda page: state.batches.list(owner, page), _shown)
    return json_answer(BatchList(**found))


@GET_BATCH.answered_by
async def get_batch(request: Request) -> Response:
    """How far a batch is."""
    state, owner = stored_of(request)
    batch_id: str = request.path_params["batch"]
    return _answer(batch_id, await in_state(state.batches.get, batch_id, owner))


@CANCEL_BATCH.answered_by
async def cancel_batch(request: Request) -> Response:
    """End a batch: what is done of it will be in its files. One that is over stays as it is."""
    state, owner = stored_of(request)
    batch_id: str = request.path_params["batch"]
    return _answer(batch_id, await in_state(state.batches.cancel, batch_id, owner))


def _answer(batch_id: str, batch: StoredBatch | None) -> Response:
    if batch is None:
        raise RefusalError("not_found", f"there is no batch {quoted(batch_id)}", "batch")
    return json_answer(_shown(batch))


def _shown(batch: StoredBatch) -> BatchObject:
    errors = _errors.decode(batch.errors)
    own = {
        "errors": BatchErrors(data=errors) if errors else None,
        "request_counts": RequestCounts(batch.total, batch.completed, batch.failed),
        "metadata": _metadata.decode(batch.metadata),
    }
    return msgspec.convert({**msgspec.structs.asdict(batch), **own}, BatchObject)
