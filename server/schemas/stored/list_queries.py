"""The queries of `GET /v1/files` and `GET /v1/batches`, and the form of their answers."""

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

Item = TypeVar("Item")


class ObjectList(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A page of a list. With `has_more`, the next one is behind `last_id`."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the client's files, behind the one with the id `after`."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class BatchListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the client's batches, behind the one with the id `after`."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: str | None = None
