"""`/v1/files`."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


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


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of files. With `has_more`, the next one is behind `last_id`."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
