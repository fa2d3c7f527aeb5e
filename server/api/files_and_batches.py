"""`/v1/files` and `/v1/batches`: uploaded files of requests, answered when there is room."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from fastapi import Request, Response
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import FileResponse

from engine_core.refusal import RefusalError
from server.batches.state.database import Page
from server.batches.state.stored_batches import BatchError, Status, StoredBatch
from server.batches.state.stored_files import StoredFile, Upload, new_id
from server.errors import quoted
from server.http.body import Body, length_of, query_of
from server.http.form import Form
from server.schemas.common import invalid
from server.service.endpoint import Endpoint, operation
from server.service.service import json_answer, service_of
from server.service.stored import Stored, in_state, page_of, stored_of, storing
from server.settings.settings import Limits

Item = TypeVar("Item")
LEAST_KEPT_SECONDS, MOST_KEPT_SECONDS = 3600, 2_592_000
KeptSeconds = Annotated[int, Meta(ge=LEAST_KEPT_SECONDS, le=MOST_KEPT_SECONDS)]
BatchEndpoint = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/rerank"]


class ObjectList(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A page of a list. With `has_more`, the next one is behind `last_id`."""

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[Item]
    """The entries of the page, the newest first."""
    first_id: str | None
    """Id of the first of them, or null."""
    last_id: str | None
    """Id of the last of them, or null: `after` it the next page begins."""
    has_more: bool
    """Whether there is a next page."""


class FileListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the client's files, behind the one with the id `after`."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    """The most files of the answer: 1 to 10,000, which is the default."""
    after: str | None = None
    """The id of a file: the list begins behind it. While `has_more` is true, the next page is
    behind `last_id`; one that is none of yours gets 400."""
    order: Literal["asc", "desc"] = "desc"
    """`desc`, the newest first, or `asc`."""
    purpose: str | None = None
    """`batch` or `batch_output`; without it, files of both."""


class BatchListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the client's batches, behind the one with the id `after`."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    """The most batches of the answer: 1 to 100; 20 by default."""
    after: str | None = None
    """The id of a batch: the list begins behind it."""


class FileForm(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an upload, which is read as it comes."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    """The file: a [request in each line](batch.md#requests). At most `--max-file-size` bytes (413)
    and `--max-file-lines` lines (400 `too_large`); 403 `quota_exceeded` beyond `--max-stored-size`
    of one key's files."""
    purpose: Literal["batch"]
    """`batch`."""
    anchor: Literal["created_at"] | UnsetType = msgspec.field(
        default=UNSET, name="expires_after[anchor]"
    )
    seconds: KeptSeconds | UnsetType = msgspec.field(default=UNSET, name="expires_after[seconds]")
    """`created_at`, and 3,600 to 2,592,000: when the file is deleted. Otherwise it stays until you
    delete it."""


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file. Times are in seconds since 1970; without `expires_at` it stays until it is
    deleted."""

    id: str
    """The file's id."""
    object: Literal["file"] = "file"
    """Always `file`."""
    bytes: int
    """The file's size."""
    created_at: int
    """When it was stored, in seconds since 1970."""
    expires_at: int | UnsetType = UNSET
    """When it is deleted, in seconds since 1970; absent if it stays until somebody deletes it."""
    filename: str
    """The name that it came with."""
    purpose: Literal["batch", "batch_output"]
    """`batch` for what a client has uploaded, `batch_output` for answers of a batch."""
    status: Literal["processed"] = "processed"
    """Always `processed`."""


class FileList(ObjectList[FileObject], frozen=True, kw_only=True):
    """A page of files. With `has_more`, the next one is behind `last_id`."""


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file is gone."""

    id: str
    """The file's id."""
    object: Literal["file"] = "file"
    """Always `file`."""
    deleted: bool = True
    """Always true: the file is gone."""


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True):
    """How long a file is kept: `seconds` from its creation."""

    anchor: Literal["created_at"]
    """Always `created_at`: the time counts from the file's creation."""
    seconds: KeptSeconds
    """1 hour to 30 days."""


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Answer every line of an uploaded file, each of which is a request to `endpoint`."""

    """Example: {"completion_window": "24h", "endpoint": "/v1/chat/completions", "input_file_id":
    "file-04a9df3b4ece44f7", "output_expires_after": {"anchor": "created_at", "seconds": 86400}}"""

    input_file_id: str
    """A file with the purpose `batch`."""
    endpoint: BatchEndpoint
    """`/v1/completions`, `/v1/chat/completions`, `/v1/embeddings` or `/v1/rerank`: that of all its
    lines."""
    completion_window: Literal["24h"]
    """`24h`: what is not answered by then gets the error `batch_expired`."""
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=16),
        ]
        | None
    ) = None
    """At most 16 texts of 512 characters, with names of 64: they come back with the batch."""
    output_expires_after: ExpiresAfter | None = None
    """When the files with the answers are deleted: `created_at` as `anchor`, and 3,600 to 2,592,000
    `seconds`."""


class RequestCounts(msgspec.Struct, frozen=True):
    """Lines in all, answered well, and failed."""

    total: int
    """Lines of the file."""
    completed: int
    """Lines that were answered well."""
    failed: int
    """Lines that were answered with an error."""


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Why the batch failed."""

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[BatchError]
    """The errors."""


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are in seconds since 1970, `NAME_at` when it took that status; what is not
    done by `expires_at` will not be. The output file has the answers, the error file what failed;
    each is null where it would be empty."""

    id: str
    """The batch's id."""
    object: Literal["batch"] = "batch"
    """Always `batch`."""
    endpoint: str
    """Where all lines go."""
    model: str | None
    """The model that all lines name, once that is known."""
    errors: BatchErrors | None
    """Why the batch failed as a whole, or null."""
    input_file_id: str
    """The file of requests."""
    completion_window: str
    """How long the batch may take."""
    status: Status
    """The state of the batch."""
    output_file_id: str | None
    """The file of answers, once there are any."""
    error_file_id: str | None
    """The file of errors, once there are any."""
    created_at: int
    """When it was made, in seconds since 1970."""
    in_progress_at: int | None
    """When it took this status, in seconds since 1970; null if it has not."""
    expires_at: int
    """When what is not done will not be, in seconds since 1970."""
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    """When it took this status, in seconds since 1970; null if it has not."""
    request_counts: RequestCounts
    """How many lines there are, and how far they are."""
    metadata: dict[str, str] | None
    """The client's metadata."""


class BatchList(ObjectList[BatchObject], frozen=True, kw_only=True):
    """A page of batches, newest first. With `has_more`, the next one is behind `last_id`."""


_BESIDE_FILE = 2 << 20
"""More than a form has beside its file, in bytes."""
_WINDOW_SECONDS = 24 * 3600
_FILE = {"file": "The file's id."}
_batch = operation(BatchObject, path={"batch": "The batch's id."})
CREATE_FILE = Endpoint("POST", "/v1/files", operation(FileObject, form=FileForm), order=71)
LIST_FILES = Endpoint("GET", "/v1/files", operation(FileList, query=FileListQuery), order=72)
GET_FILE = Endpoint("GET", "/v1/files/{file}", operation(FileObject, path=_FILE), order=73)
DELETE_FILE = Endpoint("DELETE", "/v1/files/{file}", operation(DeletedFile, path=_FILE), order=74)
GET_CONTENT = Endpoint("GET", "/v1/files/{file}/content", operation(None, path=_FILE), order=75)
CREATE_BATCH = Endpoint("POST", "/v1/batches", operation(BatchObject, BatchRequest), order=81)
LIST_BATCHES = Endpoint("GET", "/v1/batches", operation(BatchList, query=BatchListQuery), order=82)
GET_BATCH = Endpoint("GET", "/v1/batches/{batch}", _batch, order=83)
CANCEL_BATCH = Endpoint("POST", "/v1/batches/{batch}/cancel", _batch, order=84)
_body = Body(BatchRequest)
_errors = msgspec.json.Decoder(list[BatchError])
_metadata = msgspec.json.Decoder(dict[str, str] | None)


@CREATE_FILE.answered_by
async def create_file(request: Request) -> Response:
    """Store a file for a batch: a form with `file` and `purpose`, read as it comes."""
    stored, limits = stored_of(request), service_of(request).limits
    file_id = new_id("file")
    path = stored.state.files.path(file_id)
    async with _upload(stored, path, limits) as upload:
        upload.check(length_of(request, 0) - _BESIDE_FILE)
        form = Form(request, "file", upload)
        await form.read(limits.max_file_size)
        file = _described(form, file_id, stored.owner, upload.num_bytes)
        await asyncio.to_thread(upload.commit)
        await asyncio.to_thread(stored.state.files.add, file)
    return json_answer(_file_object(file))


@LIST_FILES.answered_by
async def list_files(request: Request) -> Response:
    """The client's files, newest first or by `order`, of one `purpose` or of all. The answer has
    `limit` of them, behind `after`."""
    state, owner = stored_of(request)
    query = query_of(request, FileListQuery)
    page = Page(query.limit, query.after, newest_first=query.order == "desc")
    found = await page_of(
        page, lambda page: state.files.list(owner, page, query.purpose), _file_object
    )
    return json_answer(FileList(**found))


@GET_FILE.answered_by
async def get_file(request: Request) -> Response:
    """Name, size and purpose of a file."""
    _, file = await _found(request)
    return json_answer(_file_object(file))


@GET_CONTENT.answered_by
async def get_content(request: Request) -> Response:
    """The contents of a file."""
    path, file = await _found(request)
    status = await in_state(_status, path)
    if status is None:
        raise RefusalError("gone", f"the contents of {quoted(file.id)} are gone", "file")
    return FileResponse(
        path, media_type="application/octet-stream", filename=file.filename, stat_result=status
    )


@DELETE_FILE.answered_by
async def delete_file(request: Request) -> Response:
    """Delete a file. A batch that reads it goes on, but not after a restart of the daemon."""
    state, owner = stored_of(request)
    file_id: str = request.path_params["file"]
    if not await in_state(state.files.delete, file_id, owner):
        raise _not_found(file_id)
    return json_answer(DeletedFile(id=file_id))


@asynccontextmanager
async def _upload(stored: Stored, path: Path, limits: Limits) -> AsyncGenerator[Upload]:
    """Receive the contents of a file, and discard them if the block fails. Raises RefusalError."""
    with storing():
        used = await asyncio.to_thread(stored.state.files.used_bytes, stored.owner)
        upload = await asyncio.to_thread(
            Upload,
            path,
            max_bytes=limits.max_file_size,
            max_lines=limits.max_file_lines,
            left_bytes=max(0, limits.max_stored_size - used),
        )
        try:
            yield upload
        except BaseException:
            await asyncio.shield(asyncio.to_thread(upload.discard))
            raise


def _described(form: Form, file_id: str, owner: str, num_bytes: int) -> StoredFile:
    """Raises RefusalError."""
    if form.filename is None:
        raise invalid("file", "is required")
    purpose = form.fields.get("purpose")
    if purpose != "batch":
        said = "is required: batch" if purpose is None else f"{quoted(purpose)} is not batch"
        raise invalid("purpose", said)
    now = int(time.time())
    seconds = _kept_seconds(form.fields)
    return StoredFile(
        id=file_id,
        owner=owner,
        filename=form.filename,
        purpose="batch",
        bytes=num_bytes,
        created_at=now,
        expires_at=None if seconds is None else now + seconds,
    )


def _kept_seconds(fields: dict[str, str]) -> int | None:
    """The seconds for which a file is kept, or None for ever. Raises RefusalError."""
    anchor, text = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and text is None:
        return None
    if anchor != "created_at":
        raise RefusalError(
            "invalid_request", "expires_after.anchor: is created_at", "expires_after"
        )
    least, most = LEAST_KEPT_SECONDS, MOST_KEPT_SECONDS
    if not re.fullmatch(r"[0-9]{1,9}", text or "") or not least <= int(text or 0) <= most:
        message = f"expires_after.seconds: is a number from {least} to {most}"
        raise RefusalError("invalid_request", message, "expires_after")
    return int(text or 0)


async def _found(request: Request) -> tuple[Path, StoredFile]:
    """The file that the path names, and where it is. Raises RefusalError."""
    state, owner = stored_of(request)
    file_id: str = request.path_params["file"]
    file = await in_state(state.files.get, file_id, owner)
    if file is None:
        raise _not_found(file_id)
    return state.files.path(file_id), file


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _not_found(file_id: str) -> RefusalError:
    return RefusalError("not_found", f"there is no file {quoted(file_id)}", "file")


def _file_object(file: StoredFile) -> FileObject:
    known = msgspec.structs.asdict(file)
    if file.expires_at is None:
        del known["expires_at"]
    return msgspec.convert(known, FileObject)


@CREATE_BATCH.answered_by
async def create_batch(request: Request) -> Response:
    """Answer every line of an uploaded file, below the priority of all other requests."""
    state, owner = stored_of(request)
    body = await _body.read(request)
    file = await in_state(state.files.get, body.input_file_id, owner)
    if file is None or file.purpose != "batch":
        raise invalid("input_file_id", f"no file {quoted(body.input_file_id)} for batches")
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
    return json_answer(_batch_object(batch))


@LIST_BATCHES.answered_by
async def list_batches(request: Request) -> Response:
    """The client's batches, newest first: `limit` of them, behind `after`."""
    state, owner = stored_of(request)
    query = query_of(request, BatchListQuery)
    page = Page(query.limit, query.after, newest_first=True)
    found = await page_of(page, lambda page: state.batches.list(owner, page), _batch_object)
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
    return json_answer(_batch_object(batch))


def _batch_object(batch: StoredBatch) -> BatchObject:
    errors = _errors.decode(batch.errors)
    own = {
        "errors": BatchErrors(data=errors) if errors else None,
        "request_counts": RequestCounts(batch.total, batch.completed, batch.failed),
        "metadata": _metadata.decode(batch.metadata),
    }
    return msgspec.convert({**msgspec.structs.asdict(batch), **own}, BatchObject)
