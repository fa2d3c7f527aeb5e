"""Answers of an application without a socket: whole ones, and one that is too long for that."""

from collections.abc import AsyncGenerator

import msgspec
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from server.batches.answering import MAX_ANSWER_BYTES, Answer
from server.batches.engine_backend import exchange
from server.errors import ErrorBody

ID = "request-7"


class Application:
    """Answers everything with `response`."""

    def __init__(self, response: Response) -> None:
        self.response = response
        response.headers["x-request-id"] = ID

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"{}"
        await self.response(scope, receive, send)


def in_parts(*parts: bytes) -> StreamingResponse:
    async def one_by_one() -> AsyncGenerator[bytes]:
        for part in parts:
            yield part

    return StreamingResponse(one_by_one(), media_type="application/json")


@pytest.mark.parametrize(
    "response", [JSONResponse("a" * 10), in_parts(b'"', *[b"a"] * 10, b'"')], ids=["one", "parts"]
)
async def test_an_answer_is_taken_whole(response: Response) -> None:
    reply = await exchange(Application(response), "/v1/completions", b"{}")
    assert reply == Answer(200, ID, b'"aaaaaaaaaa"')


async def test_an_answer_that_is_too_long_is_not_written() -> None:
    part = b"a" * (MAX_ANSWER_BYTES >> 8)
    reply = await exchange(Application(in_parts(*[part] * 257)), "/", b"{}")
    error = msgspec.json.decode(reply.body, type=ErrorBody).error
    assert (reply.status, reply.request_id, error.code) == (400, ID, "too_large")
    assert f"has {257 * len(part)} bytes" in error.message
