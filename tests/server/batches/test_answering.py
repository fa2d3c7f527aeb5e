"""Lines to answers: what is asked again, what stops a job, how many are under way."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import msgspec
import pytest

import server.batches.answering
from engine_core.refusal import ErrorCode, RefusalError
from server.batches.answering import (
    NOT_OURS,
    Answer,
    Backend,
    Exchange,
    Line,
    Put,
    Room,
    answered,
    error_of,
)
from server.batches.batch_llm import refusal
from server.batches.daemon_backend import in_one_line
from server.batches.results import JobStoppedError
from server.errors import ERRORS, error_body
from tests.patience import PATIENCE

LINE = Line(0, "", "/x", b'{"a":1}')


def refused(code: ErrorCode, retry_after: float | None = None) -> Answer:
    body = error_body(RefusalError(code, "no", "prompt"))
    return Answer(ERRORS[code].status, "r", body, retry_after)


@pytest.mark.parametrize("code", ["overloaded", "not_ready"])
async def test_a_full_server_is_asked_again(code: ErrorCode) -> None:
    good, full = Answer(200, "r", b"yes"), refused(code, 0.001)
    exchange = AsyncMock(side_effect=[full, full, good])
    assert await answered(exchange, LINE) == good
    assert exchange.await_args_list == [call("/x", b'{"a":1}')] * 3


@pytest.mark.parametrize("code", ["context_length_exceeded", "row_failed", "model_not_found"])
async def test_an_error_is_an_answer(code: ErrorCode) -> None:
    assert await answered(AsyncMock(return_value=refused(code)), LINE) == refused(code)


@pytest.mark.parametrize(
    "answer",
    [
        *map(refused, ("invalid_api_key", "engine_dead", "unhealthy", "draining")),
        Answer(502, "", b"<html>Bad Gateway</html>"),
        Answer(403, "", b'{"message": "Forbidden"}'),
    ],
)
async def test_what_all_lines_would_get_stops_the_job(answer: Answer) -> None:
    with pytest.raises(JobStoppedError):
        await answered(AsyncMock(return_value=answer), LINE)


async def test_an_answer_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.batches.answering, "MAX_ANSWER_BYTES", 9)
    whole, long = Answer(200, "r", b"x" * 9), Answer(200, "r", b"x" * 10)
    exchange = AsyncMock(side_effect=[whole, long])
    assert await answered(exchange, LINE) == whole
    answer = await answered(exchange, LINE)
    assert (answer.status, answer.request_id) == (400, "r")
    assert (error_of(answer).code, " 10: " in error_of(answer).message) == ("too_large", True)


def test_an_error_of_one_request_is_its_own_and_that_of_a_model_stops_the_job() -> None:
    error = refusal(refused("row_failed"))
    assert (error.code, error.message, error.param) == ("row_failed", "no", "prompt")
    for code in ("model_not_found", "wrong_endpoint", "model_required"):
        with pytest.raises(JobStoppedError, match=code):
            refusal(refused(code))


async def together(exchange: Exchange, lines: Iterable[Line], at_once: int, put: Put) -> None:
    await Backend(exchange, at_once=at_once, sharing="by token").answer(lines, put)


def numbered(count: int) -> list[Line]:
    return [Line(number, "", "/x", b"%d" % number) for number in range(count)]


async def test_the_first_failure_ends_the_rest() -> None:
    done: list[int] = []

    async def exchange(path: str, data: bytes) -> Answer:
        if data == b"1":
            raise JobStoppedError("gone")
        await asyncio.sleep(0.05)
        return Answer(200, "", data)

    with pytest.raises(JobStoppedError, match="gone"):
        await together(exchange, numbered(5), 2, lambda line, _: done.append(line.index))
    assert not done


async def test_so_many_are_under_way_at_once_begun_in_order() -> None:
    under_way, most, begun = 0, 0, list[int]()

    async def exchange(path: str, data: bytes) -> Answer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        begun.append(int(data))
        await asyncio.sleep(0.001)
        under_way -= 1
        return Answer(200, "", data)

    answers: dict[int, bytes] = {}
    put: Put = lambda line, answer: answers.__setitem__(line.index, answer.body)  # noqa: E731
    await together(exchange, numbered(40), 12, put)
    assert begun == list(range(40))
    assert most == 12
    assert answers == {number: b"%d" % number for number in range(40)}


async def test_the_first_line_is_asked_for_before_all_are_read() -> None:
    read: list[int] = []
    read_before: list[int] = []

    def lines() -> Iterator[Line]:
        for line in numbered(100):
            read.append(line.index)
            yield line

    async def exchange(path: str, data: bytes) -> Answer:
        read_before.append(len(read))
        return Answer(200, "", data)

    await together(exchange, lines(), 1000, lambda *_: None)
    assert read_before[0] < 5


async def test_a_result_that_nobody_can_use_stops_the_job() -> None:
    exchange = AsyncMock(return_value=Answer(200, "", b""))
    with pytest.raises(JobStoppedError, match="no penstock"):
        await together(exchange, [LINE, LINE], 2, Mock(side_effect=JobStoppedError("no penstock")))


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b'{\n "choices": [],\n "a": "b\\n"}\r\n', 200, 200),
        (b"<html>\nWelcome</html>", 200, 500),
        (b"<html>\nOh</html>", 500, 500),
        (b"\xff", 404, 404),
        (b"", 500, 500),
        (b"[" * 100_000, 200, 500),
    ],
)
def test_whatever_a_gateway_answers_is_one_line_of_json(body, status, expected) -> None:
    found = in_one_line(Answer(status, "", body))
    assert found.status == expected
    assert b"\n" not in found.body
    assert isinstance(msgspec.json.decode(found.body), dict)
    assert found.is_good or error_of(found).code == NOT_OURS


async def waiting_for(room: Room, first: int, second: int) -> asyncio.Task[Any]:
    """A task that waits for room, and has not got it yet."""
    waiting = asyncio.create_task(asyncio.wait_for(room.take(first, second), PATIENCE))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    return waiting


async def test_a_room_waits_until_there_is_enough_of_both() -> None:
    room = Room(4, 100)
    give = await room.take(1, 81)
    give_more = await room.take(1, 9)
    waiting = await waiting_for(room, 2, 20)
    give_more(0, 0)
    await asyncio.sleep(0.01)
    assert not waiting.done(), "one token short"
    give(0, 0)
    await waiting


async def test_who_waits_is_served_in_turn() -> None:
    room = Room(4, 100)
    give = await room.take(4, 4)
    order: list[int] = []

    async def take(number: int, rows: int) -> None:
        give_own = await room.take(rows, 1)
        order.append(number)
        give_own(0, 0)

    waiting = [asyncio.create_task(take(number, rows)) for number, rows in enumerate((4, 1, 1))]
    await asyncio.sleep(0)
    give(0, 0)
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
    assert order == [0, 1, 2], "small ones do not overtake"


async def test_what_is_larger_than_the_room_takes_all_of_it_and_gives_it_back() -> None:
    room = Room(4, 100)
    give = await room.take(5, 1000)
    waiting = await waiting_for(room, 1, 1)
    give(0, 0)
    (await waiting)(0, 0)
    await asyncio.wait_for(room.take(4, 100), PATIENCE)


async def test_who_leaves_takes_nothing() -> None:
    room = Room(1, 1)
    give = await room.take(1, 1)
    waiting = await waiting_for(room, 1, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    give(0, 0)
    await asyncio.wait_for(room.take(1, 1), PATIENCE)


async def test_a_part_may_be_given_back_early() -> None:
    room = Room(2, 10)
    keep = await room.take(1, 10)
    keep(1, 4)
    keep(1, 9)  # never more than there was
    give = await asyncio.wait_for(room.take(1, 6), PATIENCE)
    waiting = await waiting_for(room, 2, 10)
    give(0, 0)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    keep(0, 0)
    await waiting
