from typing import get_args

import msgspec
import pytest

from engine_core.client.pending_jobs import EngineError
from engine_core.messages import FailureCode
from server.errors import ERRORS, APIError, ErrorCode


def test_every_code_of_server_and_engine_is_in_the_table():
    assert set(ERRORS) == set(get_args(ErrorCode))
    assert set(get_args(FailureCode)) <= set(ERRORS)


@pytest.mark.parametrize("code", get_args(FailureCode))
def test_an_engine_error_keeps_code_message_and_field(code):
    error = APIError.from_engine(EngineError(code, "why", "prompt[3]"))
    assert msgspec.json.decode(error.body()) == {
        "error": {
            "message": "why",
            "type": ERRORS[code].type,
            "param": "prompt[3]",
            "code": code,
        },
        "detail": "why",
    }


def test_who_should_come_back_is_told_when():
    for code, kind in ERRORS.items():
        assert ("retry-after" in APIError(code, "").headers) == (kind.status in (429, 503))
