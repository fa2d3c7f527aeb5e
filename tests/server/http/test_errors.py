from typing import get_args

import msgspec
import pytest
from starlette.types import Message

from engine_core.refusal import ErrorCode, RefusalError
from server.errors import ERRORS, error_body, error_headers
from server.http.answers import ErrorAnswer
from server.observe.request_record import RequestRecord


def test_every_code_is_in_the_table():
    assert set(ERRORS) == set(get_args(ErrorCode))


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_an_answer_has_code_message_and_field(code: ErrorCode):
    assert msgspec.json.decode(error_body(RefusalError(code, "why", "prompt[3]"))) == {
        "error": {"message": "why", "type": ERRORS[code].type, "param": "prompt[3]", "code": code},
        "detail": "why",
    }


def test_who_should_come_back_is_told_when():
    for code, kind in ERRORS.items():
        told = "retry-after" in error_headers(RefusalError(code, ""))
        assert told == (kind.status in (429, 503))


@pytest.mark.parametrize(("wait", "told"), [(0.0, "1"), (0.4, "1"), (30.2, "31")])
def test_a_known_wait_is_told_in_whole_seconds(wait: float, told: str):
    refusal = RefusalError("overloaded", "full", retry_after=wait)
    assert error_headers(refusal)["retry-after"] == told


@pytest.mark.parametrize(
    ("code", "has_come", "closes"),
    [
        ("overloaded", False, True),
        ("overloaded", True, False),
        ("quota_exceeded", False, True),
        ("invalid_request", False, False),
        ("draining", True, True),
    ],
)
async def test_the_rest_of_a_body_that_is_refused_is_not_read(code, has_come, closes):
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    record = RequestRecord(request_id="", started=0.0)
    scope = {
        "type": "http", "path": "/v1/files", "headers": [], "record": record,
        "state": {"body_has_come": True} if has_come else {},
    }  # fmt: skip
    await ErrorAnswer(RefusalError(code, "no"))(scope, nothing, send)
    assert ((b"connection", b"close") in sent[0]["headers"]) == closes
    assert record.error == code


async def nothing() -> Message:
    raise AssertionError("nothing more is read")
