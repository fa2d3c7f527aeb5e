"""The queries of `GET /v1/files` and `GET /v1/batches`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


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
