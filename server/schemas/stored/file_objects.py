"""`/v1/files`."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.stored.list_queries import ObjectList

LEAST_KEPT_SECONDS, MOST_KEPT_SECONDS = 3600, 2_592_000
KeptSeconds = Annotated[int, Meta(ge=LEAST_KEPT_SECONDS, le=MOST_KEPT_SECONDS)]


class FileForm(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an upload, which is read as it comes."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Literal["batch"]
    anchor: Literal["created_at"] | UnsetType = msgspec.field(
        default=UNSET, name="expires_after[anchor]"
    )
    seconds: KeptSeconds | UnsetType = msgspec.field(default=UNSET, name="expires_after[seconds]")


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file. Times are in seconds since 1970; without `expires_at` it stays until it is
    deleted."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | UnsetType = UNSET
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"


class FileList(ObjectList[FileObject], frozen=True, kw_only=True):
    """A page of files. With `has_more`, the next one is behind `last_id`."""


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
