import asyncio
from typing import Any, cast

from server.wire import CoalescingTransport


class RecordingTransport:
    """Keeps what it is given; closed, it takes nothing more."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


def wrapped() -> tuple[CoalescingTransport, RecordingTransport]:
    inner = RecordingTransport()
    return CoalescingTransport(cast("Any", inner)), inner


async def test_one_turn_is_one_write():
    transport, inner = wrapped()
    transport.write(b"head ")
    transport.write(b"body")
    assert inner.writes == []
    await asyncio.sleep(0)
    transport.write(b"more")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert inner.writes == [b"head body", b"more"]


async def test_closing_sends_what_is_pending_first():
    transport, inner = wrapped()
    transport.write(b"last words")
    transport.close()
    assert (inner.writes, inner.closed) == ([b"last words"], True)
    await asyncio.sleep(0)
    assert inner.writes == [b"last words"]


async def test_a_lost_connection_gets_nothing_more():
    transport, inner = wrapped()
    transport.write(b"too late")
    inner.close()
    await asyncio.sleep(0)
    assert inner.writes == []


async def test_all_else_is_the_transports_own():
    transport, _ = wrapped()
    assert not transport.is_closing()
    assert transport.get_extra_info("peername") == "the peername"
