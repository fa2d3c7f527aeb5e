"""Vectors as JSON."""

import asyncio
import base64
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Raw

from server.encoding.vectors import AnyArray

_NUMBERS_AT_ONCE = 1 << 15


def in_lists(row: AnyArray) -> object:
    """Its numbers as a list, or as lists."""
    return row.tolist()


def in_base64(row: AnyArray) -> object:
    """The bytes of its numbers."""
    return base64.b64encode(row.tobytes()).decode()


async def rows_in_json(rows: Iterable[AnyArray], form: Callable[[AnyArray], object]) -> list[Raw]:
    """Each array in this form. Other requests run in between: a large answer takes a while to
    encode."""
    encoded: list[Raw] = []
    numbers = 0
    for row in rows:
        encoded.append(Raw(msgspec.json.encode(form(row))))
        numbers += row.size
        if numbers >= _NUMBERS_AT_ONCE:
            numbers = 0
            await asyncio.sleep(0)
    return encoded
