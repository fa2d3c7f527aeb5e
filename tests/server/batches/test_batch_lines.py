import json

import pytest

from server.batches.answering import Answer, Line
from server.batches.file_job import (
    LineError,
    LineRules,
    custom_id_of,
    output_line,
    read_line,
    read_output,
)
from tests.server.batches.requests_file import RULES, line


def test_a_request_is_read() -> None:
    read = read_line(4, 9, line("a", "text", max_tokens=3), RULES)
    assert isinstance(read, Line)
    assert (read.index, read.custom_id, read.url) == (4, "a", "/v1/completions")
    assert json.loads(read.body) == {"prompt": "text", "max_tokens": 3}


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (b"nonsense", "invalid_json_line", "line 9: not JSON"),
        (b"\xff", "invalid_json_line", "utf-8"),
        (b"[" * 100_000, "invalid_request", "objects"),
        (b"5", "invalid_request", "line 9: a line and its body are objects"),
        (b'{"custom_id": "a"}', "invalid_request", "line 9: url: is required"),
        (line("a").replace(b"POST", b"GET"), "invalid_request", "line 9: method: "),
        (line("a").replace(b"completions", b"tokenize"), "invalid_url", "line 9: url: "),
        (line("a", stream=True), "invalid_request", "line 9: stream: "),
        (line("a", priority=3), "invalid_request", "line 9: priority: "),
        (line("a", timeout=3), "invalid_request", "line 9: timeout: "),
        (
            b'{"custom_id":"a","method":"POST","url":"/v1/rerank","body":[]}',
            "invalid_request",
            "bo",
        ),
    ],
)
def test_what_is_no_request_is_explained(text: bytes, code: str, says: str) -> None:
    error = read_line(4, 9, text, RULES)
    assert isinstance(error, LineError)
    assert error.code == code
    assert says in error.message


def test_a_batch_may_be_for_one_endpoint() -> None:
    rules = LineRules(max_line_bytes=100, endpoint="/v1/completions")
    assert isinstance(read_line(0, 1, line("a", model="m", stream=False), rules), Line)
    other = read_line(0, 1, line("a").replace(b"/v1/completions", b"/v1/rerank"), rules)
    assert isinstance(other, LineError)
    assert other.code == "invalid_url"


def test_output_lines_are_openais() -> None:
    answer = Answer(200, "req-1", b'{"choices":[]}')
    text = output_line("batch_req_1", "a", answer)
    assert json.loads(text) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "req-1", "body": {"choices": []}},
        "error": None,
    }
    assert read_output(text) == answer
    error = LineError("invalid_url", "line 1: url")
    text = output_line("batch_req_2", None, error)
    assert json.loads(text)["error"] == {"code": "invalid_url", "message": "line 1: url"}
    assert json.loads(text)["response"] is None
    assert read_output(text) == error


def test_an_id_is_read_where_the_rest_is_wrong() -> None:
    assert custom_id_of(b'{"custom_id": "a", "url": 5}') == "a"
    assert custom_id_of(b'{"custom_id": 5}') is None
    for text in (
        b"nonsense",
        b'{"custom_id": "\xff"}',
        rb'{"custom_id": "\ud800"}',
        b"[" * 100_000,
    ):
        assert custom_id_of(text) is None
