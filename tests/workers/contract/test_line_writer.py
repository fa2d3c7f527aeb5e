"""Lines to a pipe that nobody reads, to one that is closed, and from several writers at once."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.patience import wait_until
from workers.contract.process import LineWriter

LINE = b"x" * 99 + b"\n"


def says(lines: int) -> bytes:
    return b"dropped=%d\n" % lines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    # A writer's thread may still have the other end, whose number must not become another pipe's.
    with suppress(OSError):
        os.close(ends[0])


def drained(reader: int, until: bytes) -> bytes:
    """The bytes that come up to `until`."""
    data = b""
    while until not in data:
        data += os.read(reader, 1 << 16)
    return data


@pytest.mark.parametrize("gather_s", [0.0, 0.1])
def test_a_line_is_written_within_a_moment(pipe: tuple[int, int], gather_s: float) -> None:
    reader, descriptor = pipe
    writer = LineWriter(descriptor, says, gather_s=gather_s)
    writer.write(b"one\n")
    writer.write(b"two\n")
    assert drained(reader, b"two\n") == b"one\ntwo\n"
    writer.write(b"three\n")
    writer.close()
    assert os.read(reader, 100) == b"three\n"


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("block", [1 << 12, 1 << 16])
def test_a_full_pipe_blocks_nobody_and_what_is_lost_is_counted(
    pipe: tuple[int, int], block: int, blocking: bool
) -> None:
    reader, descriptor = pipe
    os.set_blocking(descriptor, blocking)
    most = 200_000
    counted: list[int] = []
    writer = LineWriter(descriptor, says, counted.append, block_bytes=block, most_bytes=most)
    slowest = 0.0
    for _ in range(100):
        started = time.monotonic()
        for _ in range(100):
            writer.write(LINE)
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.005)
    assert slowest < 1
    lost = sum(counted)  # they count while the pipe is full, and are told of when it is not
    size = fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)

    data = drained(reader, says(lost))
    writer.write(b"last\n")
    data += drained(reader, b"last\n")
    writer.close()
    *lines, last = data.splitlines(keepends=True)
    assert last == b"last\n"
    assert lines.count(says(lost)) == 1
    assert set(lines) == {LINE, says(lost)}
    assert len(lines) - 1 + lost == 10_000
    assert len(data) < most + size + block + 10_000  # so much waited, and no more


def test_a_reader_that_has_gone_is_counted(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    counted: list[int] = []
    writer = LineWriter(descriptor, says, counted.append)
    os.close(reader)
    writer.write(b"one\n")
    wait_until(lambda: counted == [1])
    writer.write(b"a traceback\nof two lines\n")
    wait_until(lambda: counted == [1, 2])
    writer.close()


def test_what_was_dropped_last_is_told_when_it_closes(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LineWriter(descriptor, says, most_bytes=10_000, gather_s=0.2)
    for _ in range(100):
        writer.write(LINE * 20)
    writer.close()
    *lines, said = os.read(reader, 1 << 16).splitlines(keepends=True)
    assert said == says(100 * 20 - len(lines))


def test_lines_of_several_processes_stay_whole(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writers = [LineWriter(descriptor, says, gather_s=0.01) for _ in range(3)]
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
            writer.write(bytes([letter]) * (50 + number % 100) + b"\n")
        if number % 200 == 0:
            time.sleep(0.01)
    thread.join()
    for writer in writers:
        writer.close()
    assert all(len(set(line)) == 1 and len(line) < 150 for line in lines)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_closed_writer_never_waits(pipe: tuple[int, int], blocking: bool) -> None:
    reader, descriptor = pipe
    os.set_blocking(descriptor, blocking)
    writer = LineWriter(descriptor, says)
    for _ in range(2000):
        writer.write(LINE)
    started = time.monotonic()
    writer.close()
    writer.write(b"lost\n")
    writer.close()
    assert time.monotonic() - started < 3
    size = fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    assert b"lost" not in os.read(reader, size)


def test_last_words_are_written_at_once(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LineWriter(descriptor, says)
    writer.close()
    words = b"last words\n" * 700
    writer.write(words)
    assert os.read(reader, 1 << 16) == words
    os.close(reader)
    writer.write(b"to nobody\n")
