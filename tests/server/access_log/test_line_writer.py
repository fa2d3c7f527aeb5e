"""Lines to a pipe that nobody reads, to one that is closed, and from several writers at once."""

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from server.access_log.line_writer import LineWriter

LINE = b"x" * 99


def says(lines: int) -> bytes:
    return b"dropped=%d" % lines


def opened(descriptor: int, *, alone: bool = False, most_bytes: int = 8 << 20) -> LineWriter:
    return LineWriter(descriptor, lambda _: None, says, alone=alone, most_bytes=most_bytes)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def drained(reader: int, until: bytes) -> bytes:
    """All that comes up to `until`."""
    data = b""
    while until not in data:
        data += os.read(reader, 1 << 16)
    return data


async def test_a_line_is_written_within_a_moment(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = opened(descriptor)
    writer.write(b"one")
    writer.write(b"two")
    started = time.monotonic()
    assert await asyncio.to_thread(drained, reader, b"two\n") == b"one\ntwo\n"
    assert time.monotonic() - started < 1
    writer.write(b"three")
    writer.close()
    assert os.read(reader, 100) == b"three\n"


@pytest.mark.parametrize("alone", [False, True])
async def test_a_full_pipe_blocks_nobody_and_what_is_lost_is_counted(
    pipe: tuple[int, int], alone: bool
) -> None:
    reader, descriptor = pipe
    most = 200_000
    counted: list[int] = []
    writer = LineWriter(descriptor, counted.append, says, alone=alone, most_bytes=most)
    slowest = 0.0
    for _ in range(100):
        started = time.monotonic()
        for _ in range(100):
            writer.write(LINE)
        slowest = max(slowest, time.monotonic() - started)
        await asyncio.sleep(0.005)
    assert slowest < 1
    lost = sum(counted)  # they count while the pipe is full, and are told of when it is not
    size = fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)

    data = await asyncio.to_thread(os.read, reader, size)
    while data.count(b"\n") < most // 100:
        data += await asyncio.to_thread(os.read, reader, 1 << 16)
    await asyncio.sleep(0.2)  # the writer has room again
    writer.write(b"last")
    data += await asyncio.to_thread(drained, reader, b"last\n")
    writer.close()
    *lines, said, last = data.splitlines()
    assert set(lines) == {LINE}
    assert last == b"last"
    assert said == says(lost)
    assert len(lines) + lost == 10_000
    block = 1 << 16 if alone else 1 << 12
    assert len(data) < most + size + block + 10_000  # so much waited, and no more


async def test_a_reader_that_has_gone_is_counted(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    counted: list[int] = []
    writer = LineWriter(descriptor, counted.append, says, alone=True)
    os.close(reader)
    writer.write(b"one")
    await asyncio.sleep(0.3)
    writer.write(b"two")
    assert counted == [1]
    writer.close()


async def test_what_was_dropped_last_is_told_when_the_log_closes(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = opened(descriptor, most_bytes=10_000)
    for _ in range(100):
        writer.write(LINE * 20)
    await asyncio.sleep(0.2)
    writer.close()
    *lines, said = os.read(reader, 1 << 16).splitlines()
    assert said == says(100 - len(lines))


async def test_lines_of_several_processes_stay_whole(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writers = [opened(descriptor) for _ in range(3)]
    lines: list[bytes] = []

    def read() -> None:
        data = b""
        while data.count(b"\n") < 6000:
            data += os.read(reader, 1 << 12)
        lines.extend(data.splitlines())

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(2000):
        for letter, writer in zip(b"abc", writers, strict=True):
            writer.write(bytes([letter]) * (50 + number % 100))
        if number % 200 == 0:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(thread.join)
    for writer in writers:
        writer.close()
    assert all(len(set(line)) == 1 and len(line) < 150 for line in lines)


async def test_closing_waits_for_a_full_pipe_no_longer_than_a_second(
    pipe: tuple[int, int],
) -> None:
    writer = opened(pipe[1])
    for _ in range(2000):
        writer.write(LINE)
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 3
