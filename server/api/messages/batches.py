"""`/v1/messages/batches`: many messages, answered when there is room."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from fastapi import Request
from msgspec import Meta, Raw, UnsetType
from starlette.responses import FileResponse, StreamingResponse

from engine_core.refusal import RefusalError
from server.api.declaration import answers
from server.api.files_and_batches import WINDOW_SECONDS, BatchId, found_by, uploading
from server.api.messages.messages import ANTHROPIC_ERRORS
from server.batches.file_job import LineError, custom_id_of, read_output
from server.batches.state.database import Page
from server.batches.state.stored_batches import EXPIRED, OVER, BatchError, StoredBatch
from server.batches.state.stored_files import StoredFile, Upload, new_id
from server.errors import quoted
from server.http.anthropic_errors import AnthropicError, AnthropicErrorBody
from server.schemas.common import RawObject, as_object, invalid, renamed
from server.service.endpoint import Endpoint, operation
from server.service.service import service_of
from server.service.stored import in_state, page_of, stored_of

_ENDPOINT = "/v1/messages"
_KEPT_SECONDS = 29 * 24 * 3600
_AT_ONCE = 1 << 16
_LINES = "application/x-jsonl"
_BATCH = {"batch": "The batch's id."}


class BatchedMessage(msgspec.Struct, frozen=True, kw_only=True):
    custom_id: Annotated[str, Meta(min_length=1, max_length=64)]
    """1 to 64 characters, by which its result is known; no two of the same."""
    params: RawObject
    """A body of [messages](#post-v1messages), not streamed. What is wrong with it is its result."""


class MessageBatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to `/v1/messages` that nobody waits for."""

    """Example: {"requests": [{"custom_id": "first", "params": {"max_tokens": 12, "messages":
    [{"content": "What does it return?", "role": "user"}], "model": "penstock-demo"}}]}"""

    requests: Annotated[list[BatchedMessage], Meta(min_length=1)]
    """At least one, at most `--max-file-lines`, and `--max-body-size` bytes in all. They are kept
    as a [file](#files-and-batches) of the client's."""


class MessageBatchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the client's batches."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    """The most batches of the answer: 1 to 1,000; 20 by default."""
    after_id: str | None = None
    """The id of a batch: the list begins behind it."""
    before_id: str | None = None
    """The id of a batch: the list ends before it. Not together with `after_id`."""


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True):
    processing: int
    """Requests without a result so far."""
    succeeded: int
    """Requests that were answered well."""
    errored: int
    """Requests that were answered with an error."""
    canceled: int
    """Requests without an answer, because the batch was cancelled."""
    expired: int
    """Requests without an answer in time."""


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of messages."""

    id: str
    """The batch's id."""
    type: Literal["message_batch"] = "message_batch"
    """Always `message_batch`."""
    processing_status: Literal["in_progress", "canceling", "ended"]
    """The state of the batch."""
    request_counts: MessageCounts
    """How many requests there are, and how far they are."""
    created_at: datetime
    """When it was made."""
    expires_at: datetime
    """When what is not done will not be."""
    ended_at: datetime | None
    cancel_initiated_at: datetime | None
    archived_at: datetime | None = None
    """When that was, or null."""
    results_url: str | None
    """The path of the results, once it has ended."""


class MessageBatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches, newest first. With `has_more`, the next one is behind `last_id`."""

    data: list[MessageBatch]
    """The entries of the page, the newest first."""
    first_id: str | None
    last_id: str | None
    """Ids of the first and the last of them, or null."""
    has_more: bool
    """Whether there is a next page."""


class DeletedMessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """The batch's id."""
    type: Literal["message_batch_deleted"] = "message_batch_deleted"
    """Always `message_batch_deleted`."""


class _Result(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: Raw | UnsetType = msgspec.UNSET
    error: Raw | UnsetType = msgspec.UNSET


class _ResultLine(msgspec.Struct, frozen=True):
    custom_id: str | None
    result: _Result


class _InputLine(msgspec.Struct, frozen=True, kw_only=True):
    custom_id: str
    method: str = "POST"
    url: str = _ENDPOINT
    body: Raw


@answers(
    Endpoint("POST", "/v1/messages/batches", "Anthropic", order=24),
    operation(MessageBatch, MessageBatchRequest, errors=ANTHROPIC_ERRORS),
)
async def create_message_batch(request: Request, body: MessageBatchRequest) -> MessageBatch:
    """Answer each of the requests, below the priority of all others."""
    _check(body.requests)
    stored, now = stored_of(request), int(time.time())
    batch_id, file_id = new_id("msgbatch"), new_id("file")
    path = stored.state.files.path(file_id)
    try:
        async with uploading(stored, path, service_of(request).limits) as upload:
            await asyncio.to_thread(_write, upload, body.requests)
            file = StoredFile(
                id=file_id,
                owner=stored.owner,
                filename=f"{batch_id}.jsonl",
                purpose="batch",
                bytes=upload.num_bytes,
                created_at=now,
                expires_at=now + _KEPT_SECONDS,
            )
            await asyncio.to_thread(stored.state.files.add, file)
    except RefusalError as error:
        raise renamed(error, "file", "requests") from None
    batch = StoredBatch(
        id=batch_id,
        owner=stored.owner,
        endpoint=_ENDPOINT,
        input_file_id=file_id,
        completion_window="24h",
        metadata="null",
        output_seconds=_KEPT_SECONDS,
        total=len(body.requests),
        created_at=now,
        expires_at=now + WINDOW_SECONDS,
    )
    await in_state(stored.state.batches.add, batch)
    return _shown(batch)


def _check(requests: list[BatchedMessage]) -> None:
    seen: set[str] = set()
    for number, each in enumerate(requests):
        if each.custom_id in seen:
            reason = f"{quoted(each.custom_id)} is that of an earlier request"
            raise invalid(f"requests[{number}].custom_id", reason)
        seen.add(each.custom_id)
        as_object(each.params, f"requests[{number}].params")


def _write(upload: Upload, requests: list[BatchedMessage]) -> None:
    for each in requests:
        # Whole lines: what a client sends may have line breaks between its fields.
        body = Raw(msgspec.json.format(bytes(each.params), indent=-1))
        line = _InputLine(custom_id=each.custom_id, body=body)
        upload.write(msgspec.json.encode(line) + b"\n")
    upload.commit()


@answers(Endpoint("GET", "/v1/messages/batches", "Anthropic", order=25), errors=ANTHROPIC_ERRORS)
async def list_message_batches(request: Request, query: MessageBatchQuery) -> MessageBatchList:
    """The client's batches of messages, newest first."""
    state, owner = stored_of(request)
    field, known = "after_id", query.after_id
    if query.before_id is not None:
        if known is not None:
            raise invalid("before_id", "not together with after_id")
        field, known = "before_id", query.before_id
    page = Page(query.limit, known, newest_first=field == "after_id")
    try:
        found = await page_of(page, lambda page: state.batches.list(owner, page, _ENDPOINT), _shown)
    except RefusalError as error:
        raise renamed(error, "after", field) from None
    if field == "before_id":
        found["data"].reverse()
        found["first_id"], found["last_id"] = found["last_id"], found["first_id"]
    return MessageBatchList(**found)


@answers(
    Endpoint("GET", "/v1/messages/batches/{batch}", "Anthropic", order=26), errors=ANTHROPIC_ERRORS
)
async def get_message_batch(request: Request, batch: BatchId) -> MessageBatch:
    """How far a batch is."""
    return _shown(await _stored(request, batch))


@answers(
    Endpoint("POST", "/v1/messages/batches/{batch}/cancel", "Anthropic", order=27),
    errors=ANTHROPIC_ERRORS,
)
async def cancel_message_batch(request: Request, batch: BatchId) -> MessageBatch:
    """End a batch: what is done of it will be in its results. One that is over stays as it is."""
    await _stored(request, batch)
    state, owner = stored_of(request)
    return _shown(found_by("batch", batch, await in_state(state.batches.cancel, batch, owner)))


@answers(
    Endpoint("DELETE", "/v1/messages/batches/{batch}", "Anthropic", order=28),
    errors=ANTHROPIC_ERRORS,
)
async def delete_message_batch(request: Request, batch: BatchId) -> DeletedMessageBatch:
    """Delete a batch that has ended, with its requests and results."""
    stored = await _ended(request, batch)
    state, owner = stored_of(request)
    for file_id in (stored.input_file_id, stored.output_file_id, stored.error_file_id):
        if file_id is not None:
            await in_state(state.files.delete, file_id, owner)
    await in_state(state.batches.delete, batch)
    return DeletedMessageBatch(id=batch)


@answers(
    Endpoint("GET", "/v1/messages/batches/{batch}/results", "Anthropic", order=29),
    operation(FileResponse, path=_BATCH, errors=ANTHROPIC_ERRORS, file_type=_LINES),
)
async def get_message_batch_results(request: Request, batch: BatchId) -> StreamingResponse:
    """The results of a batch that has ended, a line of JSON for each request."""
    stored = await _ended(request, batch)
    path = stored_of(request).state.files.path
    results = [path(each) for each in (stored.output_file_id, stored.error_file_id) if each]
    lines = _results(stored, path(stored.input_file_id), results)
    return StreamingResponse(_gathered(lines), media_type=_LINES)


async def _stored(request: Request, batch_id: str) -> StoredBatch:
    """The client's batch. Raises RefusalError if there is none, or none of messages."""
    state, owner = stored_of(request)
    found = await in_state(state.batches.get, batch_id, owner)
    is_ours = found is not None and found.endpoint == _ENDPOINT
    return found_by("batch", batch_id, found if is_ours else None)


async def _ended(request: Request, batch_id: str) -> StoredBatch:
    found = await _stored(request, batch_id)
    if found.status not in OVER:
        raise invalid("batch", f"{quoted(batch_id)} has not ended")
    return found


def _results(batch: StoredBatch, requests: Path, results: list[Path]) -> Iterator[_ResultLine]:
    """Yield the results that there are, then those of requests that got none."""
    seen: set[str | None] = set()
    for line in _lines(results):
        custom_id = custom_id_of(line)
        seen.add(custom_id)
        yield _ResultLine(custom_id, _result(line))
    missing = _missing(batch)
    for line in _lines([requests]):
        if (custom_id := custom_id_of(line)) not in seen:
            yield _ResultLine(custom_id, missing)


def _lines(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        if path.is_file():  # else its client has deleted it
            with path.open("rb") as file:
                yield from file


def _result(line: bytes) -> _Result:
    outcome = read_output(line)
    if not isinstance(outcome, LineError):
        body = Raw(outcome.body)
        if outcome.is_good:
            return _Result("succeeded", message=body)
        return _Result("errored", error=body)
    if outcome.code == EXPIRED:
        return _Result("expired")
    return _failed("invalid_request_error", outcome.code, outcome.message)


def _missing(batch: StoredBatch) -> _Result:
    """The result of a request that nobody has answered."""
    if batch.status == "failed":
        (error,) = msgspec.json.decode(batch.errors, type=list[BatchError])
        return _failed("api_error", error.code, error.message)
    return _Result("canceled")


def _failed(
    kind: Literal["invalid_request_error", "api_error"], code: str, message: str
) -> _Result:
    details = {"error_code": code, "param": None}
    error = AnthropicError(type=kind, message=message, details=details)
    body = AnthropicErrorBody(error=error, request_id="")
    return _Result("errored", error=Raw(msgspec.json.encode(body)))


def _gathered(lines: Iterable[_ResultLine]) -> Iterator[bytes]:
    """Yield the lines as JSON, many at once."""
    gathered = bytearray()
    for line in lines:
        gathered += msgspec.json.encode(line) + b"\n"
        if len(gathered) >= _AT_ONCE:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


def _shown(batch: StoredBatch) -> MessageBatch:
    is_over = batch.status in OVER
    open_status = "canceling" if batch.status == "cancelling" else "in_progress"
    left = batch.total - batch.completed - batch.failed
    ends = (batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at)
    failed = left if batch.status == "failed" else 0
    return MessageBatch(
        id=batch.id,
        processing_status="ended" if is_over else open_status,
        request_counts=MessageCounts(
            processing=0 if is_over else left,
            succeeded=batch.completed,
            errored=batch.failed + failed,
            canceled=left if batch.status == "cancelled" else 0,
            expired=left if batch.status == "expired" else 0,
        ),
        created_at=datetime.fromtimestamp(batch.created_at, UTC),
        expires_at=datetime.fromtimestamp(batch.expires_at, UTC),
        ended_at=_time(next((end for end in ends if end), None)),
        cancel_initiated_at=_time(batch.cancelling_at),
        results_url=f"{_ENDPOINT}/batches/{batch.id}/results" if is_over else None,
    )


def _time(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
