"""Vectors as JSON."""

import asyncio
import base64
from collections.abc import Iterable

import msgspec
from msgspec import Raw

from server.encoding.vectors import AnyArray

_NUMBERS_AT_ONCE = 1 << 15


async def rows_in_json(rows: Iterable[AnyArray], *, in_base64: bool) -> list[Raw]:
    """Each array as a list of numbers, or of lists, or as its bytes in base64. Other requests run
    in between: a large answer takes a while to encode."""
    encoded: list[Raw] = []
    numbers = 0
    for row in rows:
        value = base64.b64encode(row.tobytes()).decode() if in_base64 else row.tolist()
        encoded.append(Raw(msgspec.json.encode(value)))
        numbers += row.size
        if numbers >= _NUMBERS_AT_ONCE:
            numbers = 0
            await asyncio.sleep(0)
    return encoded
