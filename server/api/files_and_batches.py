"""`/v1/files` and `/v1/batches`: uploaded files of requests, answered when there is room."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from fastapi import Request
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import FileResponse

from engine_core.refusal import RefusalError
from server.api.declaration import answers
from server.batches.state.database import Page
from server.batches.state.stored_batches import BatchEndpoint, BatchError, Status, StoredBatch
from server.batches.state.stored_files import StoredFile, Upload, new_id
from server.errors import quoted
from server.http.body import converted, length_of
from server.http.form import Form
from server.schemas.common import invalid
from server.service.endpoint import Endpoint, operation
from server.service.service import service_of
from server.service.stored import Stored, in_state, page_of, stored_of, storing
from server.settings.settings import Limits

Item = TypeVar("Item")
KeptSeconds = Annotated[int, Meta(ge=3600, le=2_592_000)]


class ObjectList(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A page of a list."""

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
    """A page of the client's files."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    """The most files of the answer: 1 to 10,000, which is the default."""
    after: str | None = None
    """A file of yours (else 400): the list begins behind it, as the next page behind `last_id`."""
    order: Literal["asc", "desc"] = "desc"
    """`desc`, the newest first, or `asc`."""
    purpose: str | None = None
    """`batch` or `batch_output`; without it, files of both."""


class BatchListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the client's batches."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    """The most batches of the answer: 1 to 100; 20 by default."""
    after: str | None = None
    """The id of a batch: the list begins behind it."""


class FileForm(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an upload, which is read as it comes."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    """A [request in each line](batch.md#requests). At most `--max-file-size` bytes (413) and
    `--max-file-lines` lines (400 `too_large`); 403 `quota_exceeded` beyond `--max-stored-size` a
    key."""
    purpose: Literal["batch"]
    """`batch`."""
    anchor: Literal["created_at"] | UnsetType = msgspec.field(
        default=UNSET, name="expires_after[anchor]"
    )
    seconds: KeptSeconds | UnsetType = msgspec.field(default=UNSET, name="expires_after[seconds]")
    """`created_at`, and 3,600 to 2,592,000: when the file is deleted. Default: when you delete
    it."""


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded file, or one that a batch has written."""

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
    id: str
    """The file's id."""
    object: Literal["file"] = "file"
    """Always `file`."""
    deleted: bool = True
    """Always true: the file is gone."""


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True):
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
    """That of all lines: `/v1/completions`, `/v1/chat/completions`, `/v1/responses`,
    `/v1/messages`, `/v1/embeddings`, `/v1/rerank` or `/v1/decisions`."""
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
    """When the answers are deleted: `created_at` as `anchor`, and 3,600 to 2,592,000 `seconds`."""


class RequestCounts(msgspec.Struct, frozen=True):
    total: int
    """Lines of the file."""
    completed: int
    """Lines that were answered well."""
    failed: int
    """Lines that were answered with an error."""


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[BatchError]
    """The errors."""


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. The output file has the answers, the error file what failed; neither is ever
    empty."""

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
WINDOW_SECONDS = 24 * 3600
FileId = Annotated[str, "The file's id."]
BatchId = Annotated[str, "The batch's id."]


@answers(Endpoint("POST", "/v1/files", "OpenAI", order=71), operation(FileObject, form=FileForm))
async def create_file(request: Request) -> FileObject:
    """Store a file for a batch: a form with `file` and `purpose`, read as it comes."""
    stored, limits = stored_of(request), service_of(request).limits
    file_id = new_id("file")
    path = stored.state.files.path(file_id)
    async with uploading(stored, path, limits) as upload:
        upload.check(length_of(request, 0) - _BESIDE_FILE)
        form = Form(request, "file", upload)
        await form.read(limits.max_file_size)
        file = _described(form, file_id, stored.owner, upload.num_bytes)
        await asyncio.to_thread(upload.commit)
        await asyncio.to_thread(stored.state.files.add, file)
    return _file_object(file)


@answers(Endpoint("GET", "/v1/files", "OpenAI", order=72))
async def list_files(request: Request, query: FileListQuery) -> FileList:
    """The client's files of one `purpose` or all, newest first or by `order`: `limit` behind
    `after`."""
    state, owner = stored_of(request)
    page = Page(query.limit, query.after, newest_first=query.order == "desc")
    found = await page_of(
        page, lambda page: state.files.list(owner, page, query.purpose), _file_object
    )
    return FileList(**found)


@answers(Endpoint("GET", "/v1/files/{file}", "OpenAI", order=73))
async def get_file(request: Request, file: FileId) -> FileObject:
    """Name, size and purpose of a file."""
    state, owner = stored_of(request)
    return _file_object(found_by("file", file, await in_state(state.files.get, file, owner)))


@answers(Endpoint("GET", "/v1/files/{file}/content", "OpenAI", order=75))
async def get_content(request: Request, file: FileId) -> FileResponse:
    """The contents of a file."""
    state, owner = stored_of(request)
    found = found_by("file", file, await in_state(state.files.get, file, owner))
    path = state.files.path(file)
    if not await in_state(path.is_file):
        raise RefusalError("gone", f"the contents of {quoted(file)} are gone", "file")
    return FileResponse(path, media_type="application/octet-stream", filename=found.filename)


@answers(Endpoint("DELETE", "/v1/files/{file}", "OpenAI", order=74))
async def delete_file(request: Request, file: FileId) -> DeletedFile:
    """Delete a file. A batch that reads it goes on, but not after a restart of the daemon."""
    state, owner = stored_of(request)
    found_by("file", file, await in_state(state.files.delete, file, owner) or None)
    return DeletedFile(id=file)


def found_by(kind: str, item_id: str, item: Item | None) -> Item:
    """The item that has been found. Raises RefusalError if there is none."""
    if item is None:
        raise RefusalError("not_found", f"there is no {kind} {quoted(item_id)}", kind)
    return item


@asynccontextmanager
async def uploading(stored: Stored, path: Path, limits: Limits) -> AsyncGenerator[Upload]:
    """Receive the contents of a file, and discard them if the block fails. Raises RefusalError."""
    with storing():
        used = await asyncio.to_thread(stored.state.used_bytes, stored.owner)
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
    """The file of an upload. Raises RefusalError."""
    named = {} if form.filename is None else {"file": form.filename}
    fields = converted({**form.fields, **named}, FileForm)
    if (fields.anchor is UNSET) != (fields.seconds is UNSET):
        raise invalid("expires_after", "has both an anchor and seconds")
    now = int(time.time())
    return StoredFile(
        id=file_id,
        owner=owner,
        filename=fields.file,
        purpose="batch",
        bytes=num_bytes,
        created_at=now,
        expires_at=None if fields.seconds is UNSET else now + fields.seconds,
    )


def _file_object(file: StoredFile) -> FileObject:
    known = msgspec.structs.asdict(file)
    if file.expires_at is None:
        del known["expires_at"]
    return msgspec.convert(known, FileObject)


@answers(Endpoint("POST", "/v1/batches", "OpenAI", order=81))
async def create_batch(request: Request, body: BatchRequest) -> BatchObject:
    """Answer every line of an uploaded file, below the priority of all other requests."""
    state, owner = stored_of(request)
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
        expires_at=now + WINDOW_SECONDS,
    )
    await in_state(state.batches.add, batch)
    return _batch_object(batch)


@answers(Endpoint("GET", "/v1/batches", "OpenAI", order=82))
async def list_batches(request: Request, query: BatchListQuery) -> BatchList:
    """The client's batches, newest first: `limit` of them, behind `after`."""
    state, owner = stored_of(request)
    page = Page(query.limit, query.after, newest_first=True)
    found = await page_of(page, lambda page: state.batches.list(owner, page), _batch_object)
    return BatchList(**found)


@answers(Endpoint("GET", "/v1/batches/{batch}", "OpenAI", order=83))
async def get_batch(request: Request, batch: BatchId) -> BatchObject:
    """How far a batch is."""
    state, owner = stored_of(request)
    return _batch_object(found_by("batch", batch, await in_state(state.batches.get, batch, owner)))


@answers(Endpoint("POST", "/v1/batches/{batch}/cancel", "OpenAI", order=84))
async def cancel_batch(request: Request, batch: BatchId) -> BatchObject:
    """End a batch: what is done of it will be in its files. One that is over stays as it is."""
    state, owner = stored_of(request)
    return _batch_object(
        found_by("batch", batch, await in_state(state.batches.cancel, batch, owner))
    )


def _batch_object(batch: StoredBatch) -> BatchObject:
    errors = msgspec.json.decode(batch.errors, type=list[BatchError])
    own = {
        "errors": BatchErrors(data=errors) if errors else None,
        "request_counts": RequestCounts(batch.total, batch.completed, batch.failed),
        "metadata": msgspec.json.decode(batch.metadata),
    }
    return msgspec.convert({**msgspec.structs.asdict(batch), **own}, BatchObject)
