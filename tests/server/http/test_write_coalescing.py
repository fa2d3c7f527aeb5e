import asyncio
from typing import Any, cast

from server.http.wire import CoalescingTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class RecordingTransport:
    """Keeps what it is given; ended or closed, it takes nothing more."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.ended = self.closed = False

    def write(self, data: bytes) -> None:
        assert data
        assert not self.ended
        assert not self.closed
        self.writes.append(data)

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


def wrapped() -> tuple[CoalescingTransport, RecordingTransport]:
    inner = RecordingTransport()
    return CoalescingTransport(cast("Any", inner)), inner


async def test_a_head_goes_with_the_beginning_of_its_body():
    transport, inner = wrapped()
    transport.write(HEAD)
    assert inner.writes == []
    transport.write(b"body")
    transport.write(b"more")
    assert inner.writes == [HEAD + b"body", b"more"]
    await asyncio.sleep(0)
    assert inner.writes == [HEAD + b"body", b"more"]


async def test_a_head_waits_for_no_body_of_a_later_turn():
    transport, inner = wrapped()
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert inner.writes == [HEAD]
    transport.write(b"body")
    assert inner.writes == [HEAD, b"body"]


async def test_closing_sends_what_is_held_first():
    transport, inner = wrapped()
    transport.write(HEAD)
    transport.close()
    assert (inner.writes, inner.closed) == ([HEAD], True)
    await asyncio.sleep(0)
    assert inner.writes == [HEAD]


async def test_an_end_goes_behind_what_is_held():
    transport, inner = wrapped()
    transport.write(HEAD)
    transport.write_eof()
    assert (inner.writes, inner.ended) == ([HEAD], True)
    await asyncio.sleep(0)
    assert inner.writes == [HEAD]


async def test_a_lost_connection_gets_nothing_more():
    transport, inner = wrapped()
    transport.write(HEAD)
    inner.close()
    await asyncio.sleep(0)
    assert inner.writes == []


async def test_all_else_is_the_transports_own():
    transport, _ = wrapped()
    assert not transport.is_closing()
    assert transport.get_extra_info("peername") == "the peername"
