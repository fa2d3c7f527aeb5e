import asyncio

import msgspec
import pytest

from engine_core.refusal import RefusalError
from server.batches.base import all_of
from server.batches.posting import NOT_OURS, Exchange, Reply, in_one_line, post, settled
from server.batches.results import JobStoppedError, RequestError
from server.errors import error_body

OVERLOADED = Reply(429, error_body(RefusalError("overloaded", "full")), 0.001)


def answering(*replies: Reply, seen: list[bytes] | None = None) -> Exchange:
    left = list(replies)

    async def exchange(path: str, data: bytes) -> Reply:
        if seen is not None:
            seen.append(path.encode() + data)
        return left.pop(0)

    return exchange


async def test_a_full_server_is_asked_again() -> None:
    seen: list[bytes] = []
    exchange = answering(OVERLOADED, OVERLOADED, Reply(200, b"yes", None), seen=seen)
    assert await post(exchange, "/x", {"a": 1}) == b"yes"
    assert seen == [b'/x{"a":1}'] * 3


@pytest.mark.parametrize("code", ["context_length_exceeded", "row_failed", "too_large"])
async def test_what_is_wrong_with_one_request_is_its_own(code: str) -> None:
    error = msgspec.json.decode(error_body(RefusalError("invalid_request", "no", "prompt")))
    error["error"]["code"] = code
    with pytest.raises(RequestError) as raised:
        await post(answering(Reply(400, msgspec.json.encode(error), None)), "/x", {})
    assert (raised.value.code, raised.value.param) == (code, "prompt")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(401, error_body(RefusalError("invalid_api_key", "no key")), None),
        Reply(404, error_body(RefusalError("model_not_found", "no such model")), None),
        Reply(500, error_body(RefusalError("engine_dead", "the engine has stopped")), None),
        Reply(502, b"<html>Bad Gateway</html>", None),
    ],
)
async def test_what_all_requests_would_get_stops_the_job(reply: Reply) -> None:
    with pytest.raises(JobStoppedError):
        await post(answering(reply), "/x", {})


async def test_the_first_failure_ends_the_rest() -> None:
    done: list[int] = []

    async def good() -> None:
        await asyncio.sleep(0.05)
        done.append(1)

    async def lost() -> None:
        raise JobStoppedError("gone")

    with pytest.raises(JobStoppedError, match="gone"):
        await all_of([good, lost, good, good, good], at_once=2)
    assert not done


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply(200, b'{\n "choices": [],\n "a": "b\\n"}\r\n', None), 200),
        (Reply(200, b"<html>\nWelcome</html>", None), 500),
        (Reply(500, b"<html>\nOh</html>", None), 500),
        (Reply(404, b"\xff", None), 404),
        (Reply(500, b"", None), 500),
        (Reply(200, b"[" * 100_000, None), 500),
    ],
)
async def test_whatever_a_gateway_answers_is_one_line_of_json(reply: Reply, status: int) -> None:
    found = in_one_line(reply)
    assert found.status == status
    assert b"\n" not in found.body
    assert isinstance(msgspec.json.decode(found.body), dict)
    _, error = await settled(answering(found), "/x", b"")
    assert (error is None) == (status == 200)
    assert error is None or error.code == NOT_OURS
