"""A long answer in parts, which may be the same bytes again and again."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.http.disconnect import CancelOnDisconnect, ClientLeftError
from server.metrics.request_record import RequestRecord

_SLICE_BYTES = 1 << 18

GAP: Final[Any] = Raw(b"\0")
"""A value of any type that is not JSON: see `with_array`."""


class PartedAnswer(Response):
    """The answer 200 with a body of JSON that is never whole in memory: it is sent a slice at a
    time, when the client has read what comes before, with other requests in between."""

    def __init__(self, parts: Sequence[bytes], record: RequestRecord) -> None:
        """The body is `parts`, one behind the other. `record` says how much of it is held."""
        super().__init__(media_type="application/json")
        self._parts = deque(parts)
        self._size = sum(map(len, parts))
        self.headers["content-length"] = str(self._size)
        record.held_bytes = lambda: held_bytes(self._parts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientLeftError), CancelOnDisconnect(receive):
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            left = self._size
            async for data in slices(_taken(self._parts)):
                left -= len(data)
                await send({"type": "http.response.body", "body": data, "more_body": left > 0})


def with_array(around: Struct, items: Sequence[Sequence[bytes]]) -> list[bytes]:
    """`around` as JSON in parts, where GAP in it stands for an array of `items`, each of them JSON
    in parts, too."""
    begin, end = msgspec.json.encode(around).split(b"\0")
    parts = [begin, b"["]
    for item in items:
        parts += [*item, b","]
    parts[len(parts) - bool(items) :] = [b"]"]
    return [*parts, end]


def _taken(parts: deque[bytes]) -> Iterator[bytes]:
    """The parts, which are not kept longer than until they are sent the last time."""
    while parts:
        yield parts.popleft()


async def slices(parts: Iterable[bytes]) -> AsyncGenerator[bytes]:
    """The parts one behind the other, cut anew; other tasks run between two slices."""
    held = bytearray()
    for part in parts:
        for begin in range(0, len(part), _SLICE_BYTES):
            held += part[begin : begin + _SLICE_BYTES]
            if len(held) >= _SLICE_BYTES:
                yield bytes(held)
                held.clear()
                await asyncio.sleep(0)
    if held:
        yield bytes(held)


def held_bytes(parts: Iterable[bytes]) -> int:
    """The memory that they take: what comes several times is there once."""
    return sum({id(part): len(part) for part in parts}.values())
