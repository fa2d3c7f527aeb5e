"""Vectors as JSON."""

import asyncio
import base64

import msgspec
from msgspec import Raw

from server.encoding.vectors import AnyArray

_ROWS_AT_ONCE = 64


async def rows_in_json(rows: AnyArray, *, in_base64: bool) -> list[Raw]:
    """Each row of [N, D] as a list of numbers, or as its bytes in base64. Other requests run in
    between: a large answer takes a while to encode."""
    encoded: list[Raw] = []
    for index, row in enumerate(rows):
        if index % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        value = base64.b64encode(row.tobytes()).decode() if in_base64 else row.tolist()
        encoded.append(Raw(msgspec.json.encode(value)))
    return encoded
