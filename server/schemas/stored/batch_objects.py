"""`/v1/batches`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.batches.state.stored_batches import BatchError, Status
from server.schemas.stored.file_objects import KeptSeconds
from server.schemas.stored.list_queries import ObjectList

Endpoint = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/rerank"]


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True):
    """How long a file is kept: `seconds` from its creation."""

    anchor: Literal["created_at"]
    seconds: KeptSeconds


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Answer every line of an uploaded file, each of which is a request to `endpoint`."""

    input_file_id: str
    endpoint: Endpoint
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
