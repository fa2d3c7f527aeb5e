"""An answer in parts: the same bytes as one whole, in slices, with other tasks in between."""

import asyncio
from typing import Any

import pytest

from server.http.parted_answer import PartedAnswer, held_bytes, slices
from server.metrics.request_record import RequestRecord
from tests.patience import PATIENCE

SLICE = 1 << 18


@pytest.mark.parametrize(
    "sizes", [[], [1], [SLICE], [SLICE + 1], [3 * SLICE, 1, 5], [1, SLICE, SLICE], [9] * 100_000]
)
async def test_slices_are_the_parts(sizes):
    parts = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
    found = [data async for data in slices(parts)]
    assert b"".join(found) == b"".join(parts)
    assert all(SLICE <= len(data) < 2 * SLICE for data in found[:-1])
    assert all(0 < len(data) < 2 * SLICE for data in found)


async def sent_by(answer: PartedAnswer, receive: Any, taking: int | None = None) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == taking:
            await asyncio.get_running_loop().create_future()

    await answer({"type": "http"}, receive, send)
    return sent


async def test_the_same_part_a_thousand_times_is_held_once():
    part, record = b"a" * SLICE, RequestRecord(request_id="", started=0.0)
    answer = PartedAnswer([part, b","] * 1000, record)
    assert record.held_bytes is not None
    assert record.held_bytes() == held_bytes([part, b","]) == SLICE + 1
    sent = await sent_by(answer, asyncio.get_running_loop().create_future)
    start, *bodies = sent
    assert dict(start["headers"])[b"content-length"] == b"%d" % (1000 * (SLICE + 1))
    assert sum(len(body["body"]) for body in bodies) == 1000 * (SLICE + 1)
    assert [body["more_body"] for body in bodies] == [True] * (len(bodies) - 1) + [False]


async def test_a_client_that_leaves_gets_no_more():
    left = asyncio.Event()

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    answer = PartedAnswer([b"a" * SLICE] * 1000, RequestRecord(request_id="", started=0.0))
    task = asyncio.create_task(sent_by(answer, receive, taking=3))
    await asyncio.sleep(0.05)
    left.set()
    assert len(await asyncio.wait_for(task, PATIENCE)) == 3
