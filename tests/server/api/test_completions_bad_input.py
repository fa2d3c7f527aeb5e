"""Every field of a completion with every kind of wrong value: a 400 that names it, never a 500."""

import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.schemas.completions import CompletionRequest
from tests.server.conftest import Deployment

BOOLEANS = [
    "echo", "stream", "ignore_eos", "add_special_tokens", "skip_special_tokens",
    "include_stop_str_in_output", "return_token_ids", "return_tokens_as_token_ids",
]  # fmt: skip
INTEGERS = {
    "n": [0, -1, 129, 2**63],
    "best_of": [0, -1, 129, 2**63],
    "max_tokens": [-1, 2**31, 2**63],
    "max_completion_tokens": [-1, 2**31, 2**63],
    "min_tokens": [-1, 17, 2**31, 2**63],
    "top_k": [-2, 2**31, 2**63],
    "logprobs": [-1, 21, 2**63],
    "prompt_logprobs": [-1, 21, 2**63],
    "truncate_prompt_tokens": [-2, 0, 2049, 2**63],
    "seed": [-(2**63) - 1, 2**63],
    "priority": [-(2**63) - 1, 2**63],
}
NUMBERS = {
    "temperature": [-0.1, 2.1],
    "top_p": [-0.1, 1.1],
    "min_p": [-0.1, 1.1],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "repetition_penalty": [0, 2.1],
    "timeout": [0, -1, 1e7, 2**63],
}
STRINGS = ["model", "user", "regex", "guided_regex", "cache_salt", "truncation_side", "session_id"]


def error_of(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    return response.json()["error"]


def refused(deployment: Deployment, field: str, raw: str) -> dict:
    """`raw` is the field's value as JSON text."""
    prompt = "" if field == "prompt" else '"prompt": "a", '
    content = f'{{{prompt}"{field}": {raw}}}'.encode()
    error = error_of(deployment.http.post("/v1/completions", content=content), 400)
    assert deployment.engines["writer"].received == []
    return error


def names(error: dict, field: str) -> bool:
    """The error is about the field, or something in it."""
    param = error["param"] or ""
    return param == field or param.startswith((f"{field}[", f"{field}."))


def test_the_lists_above_hold_every_field_of_their_type() -> None:
    simple = {*BOOLEANS, *INTEGERS, *NUMBERS, *STRINGS}
    others = {"prompt", "stop", "stop_token_ids", "logit_bias", "stream_options"}
    others |= {"allowed_token_ids", "bad_words"}
    others |= {"response_format", "choice", "guided_choice", "structured_outputs"}
    others |= {"json_schema", "guided_json"}
    assert simple | others == set(CompletionRequest.__struct_fields__)


@pytest.mark.parametrize("field", BOOLEANS)
@pytest.mark.parametrize("value", [1, 0, "true", "yes", [], {}, 1.0])
def test_what_is_no_boolean(deployment: Deployment, field: str, value: object) -> None:
    assert names(refused(deployment, field, json.dumps(value)), field)


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", ["3", 2.5, True, [], {}, 2**64])
def test_what_is_no_integer(deployment: Deployment, field: str, value: object) -> None:
    assert names(refused(deployment, field, json.dumps(value)), field)


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", ["0.5", True, [], {}])
def test_what_is_no_number(deployment: Deployment, field: str, value: object) -> None:
    assert names(refused(deployment, field, json.dumps(value)), field)


@pytest.mark.parametrize("field", [*STRINGS, "stop", "prompt"])
@pytest.mark.parametrize("value", [1, True, {}, 1.5])
def test_what_is_no_string(deployment: Deployment, field: str, value: object) -> None:
    assert names(refused(deployment, field, json.dumps(value)), field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for values in (INTEGERS, NUMBERS)
        for field in values
        for value in values[field]
    ],
)
def test_what_is_out_of_range(deployment: Deployment, field: str, value: float) -> None:
    assert names(refused(deployment, field, json.dumps(value)), field)


@pytest.mark.parametrize("field", [*INTEGERS, *NUMBERS, *BOOLEANS])
@pytest.mark.parametrize("raw", ["1e309", "-1e309", "NaN", "Infinity", "0x10", '"\\ud800"'])
def test_what_no_number_can_be(deployment: Deployment, field: str, raw: str) -> None:
    refused(deployment, field, raw)


@pytest.mark.parametrize("field", [*STRINGS, "prompt", "stop"])
@pytest.mark.parametrize("raw", [b'"\\ud800"', b'"a\0b"', b'"\xff"', b'"\xed\xa0\x80"'])
def test_what_no_string_can_be(deployment: Deployment, field: str, raw: bytes) -> None:
    content = b'{"' + field.encode() + b'": ' + raw + b"}"
    error_of(deployment.http.post("/v1/completions", content=content), 400)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [[1], [2**63]]}, "prompt[1][0]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", 2]}, "stop[1]"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"stop_token_ids": ["3"]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [3, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [3, 2**31 - 1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [3, 2**63]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [3] * 1025}, "stop_token_ids"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
        ({"min_tokens": 1, "max_tokens": 0}, "min_tokens"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"choice": []}, "choice"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    ],
)
def test_what_cannot_be(deployment: Deployment, fields: dict, param: str) -> None:
    error = error_of(deployment.post("/v1/completions", {"prompt": "a"} | fields), 400)
    assert error["param"] == param
    assert deployment.engines["writer"].received == []


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    fields=st.dictionaries(st.sampled_from(CompletionRequest.__struct_fields__), junk, max_size=3)
)
def test_no_value_of_any_field_is_more_than_a_bad_request(
    deployment: Deployment, fields: dict
) -> None:
    body = {"prompt": "a", "max_tokens": 2} | fields
    if fields.get("stream") is True:
        body["stream"] = None
    response = deployment.post("/v1/completions", body)
    if response.status_code == 200:
        assert response.json()["choices"]
        return
    error = error_of(response, 404 if response.status_code == 404 else 400)
    assert error["param"] is None or any(names(error, field) for field in body)
