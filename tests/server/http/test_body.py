import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.refusal import RefusalError
from server.daemon.application import all_endpoints
from server.http.body import Body
from server.http.openapi import structs_of
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.known_options import known_options
from server.schemas.rerank import RerankRequest

CHAT = Body(ChatRequest)
COMPLETION = Body(CompletionRequest)
RERANK = Body(RerankRequest)


def fault(body: Body, raw: bytes) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        body.decode(raw)
    assert caught.value.code == "invalid_request"
    return caught.value


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        *[(raw, None) for raw in (b"", b"{", b"[]", b"null", b"1", b'"a"', b"{\0}")],
        *[(raw, None) for raw in ("{}".encode("utf-16"), b'{"prompt": "a"} x')],
        (b"{}", "prompt"),
        (b'{"prompt": null}', "prompt"),
        (b'{"prompt": [[1], [2, "a"]]}', "prompt[1][1]"),
        (b'{"prompt": "a", "max_tokens": 1e3}', "max_tokens"),
        (b'{"prompt": "a", "temperature": 1e309}', "temperature"),
        *[(b'{"prompt": "a", "temperature": %b}' % odd, None) for odd in (b"NaN", b"-Infinity")],
        (b'{"prompt": "a", "stop": ""}', "stop"),
        *[(b'{"prompt": "%b"}' % text, None) for text in (b"\\ud800", b"a\xff")],
        (b'{"prompt": "a", "\xff": 1}', None),
        (b'{"prompt": ' + b"[" * 100_000, "prompt[0][0]"),
        (b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
        (b'\xef\xbb\xbf{"prompt": "a"}', None),
    ],
)
def test_a_fault_names_its_field(raw, param):
    assert fault(COMPLETION, raw).param == param


@pytest.mark.parametrize(
    "field",
    [
        *[{"min_p": value} for value in (None, 0, 0.05, 1)],
        *[{"presence_penalty": value} for value in (None, -2, 0, 2.0)],
        *[{"frequency_penalty": value} for value in (None, -2.0, 0, 2)],
        *[{"repetition_penalty": value} for value in (None, 0.01, 1, 2)],
        {"logit_bias": None},
        {"logit_bias": {"0": -100, "2147483647": 100.0}},
        {"logit_bias": dict.fromkeys(range(300), 1)},
    ],
)
def test_the_ends_of_a_range_are_within(field):
    assert COMPLETION.decode(msgspec.json.encode({"prompt": "a", **field}))


@pytest.mark.parametrize("key", ["hello", "", "1.0", "1e3", " 1", "0x1", "-1", "9" * 30])
def test_a_key_that_is_no_token_id_is_told_apart_from_a_value(key):
    error = fault(COMPLETION, msgspec.json.encode({"prompt": "a", "logit_bias": {key: 1}}))
    assert error.param == "logit_bias"
    assert error.message.startswith("a key of logit_bias: ")


@pytest.mark.parametrize("value", ["1", True, None, [], {}])
def test_a_bias_that_is_no_number(value):
    error = fault(COMPLETION, msgspec.json.encode({"prompt": "a", "logit_bias": {"1": value}}))
    assert error.param == "logit_bias.1"
    assert error.message.startswith("logit_bias.1: expected `float`")


def chat_fault(raw: bytes) -> str | None:
    return fault(CHAT, b'{"messages": [{"role": "user", "content": "a"}], ' + raw).param


@pytest.mark.parametrize(
    ("rest", "param"),
    [
        (b'"a": "b", "c.d": 1, "e": 2}}', "metadata.c.d"),
        (b'"%s": 1}}' % (b"k" * 10_000), f"metadata.{'k' * 99}…"),
        # Where a body is at fault elsewhere, too, the field is named.
        (b'"a": 1', "metadata"),
        (b'"a": 1}, "metadata": null}', "metadata"),
        (b'"a": 1}, "metadata": {}}', "metadata"),
        (b'"a": 1}, "x": ' + b"[" * 100_000, "metadata"),
    ],
)
def test_the_entry_at_fault_is_named_by_its_key(rest, param):
    assert chat_fault(b'"metadata": {' + rest) == param


def test_an_entry_among_very_many_is_not_searched_for():
    entries = {str(number): "a" for number in range(100_000)} | {"last": 1}
    begun = time.process_time()
    assert chat_fault(b'"metadata": ' + msgspec.json.encode(entries) + b"}") == "metadata"
    assert time.process_time() - begun < 1


def test_what_is_for_another_struct_of_a_union_is_refused_by_name():
    for form in ({"type": "json_object", "json_schema": {"schema": {}}},
                 {"type": "text", "schema": {"type": "integer"}}):  # fmt: skip
        (lost,) = form.keys() - {"type"}
        body = {"messages": [{"role": "user", "content": "a"}], "response_format": form}
        error = fault(CHAT, msgspec.json.encode(body))
        assert error.param == f"response_format.{lost}"
        assert error.message == f"{error.param}: is for another type of this object: leave it out"
        CHAT.decode(msgspec.json.encode(body | {"response_format": form | {lost: None}}))


def test_a_missing_field_in_a_list_is_named_with_its_index():
    error = fault(RERANK, b'{"query": "a", "documents": ["a", {"title": "b"}]}')
    assert error.param == "documents[1].text"
    assert error.message == "documents[1].text: is required"


@given(raw=st.binary(max_size=60))
def test_no_bytes_are_more_than_a_bad_request(raw):
    try:
        COMPLETION.decode(raw)
    except RefusalError as error:
        assert error.code == "invalid_request"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=30)
@given(body=st.dictionaries(st.sampled_from(CompletionRequest.__struct_fields__), json_values))
def test_no_value_of_any_field_is_more_than_a_bad_request(body):
    try:
        COMPLETION.decode(msgspec.json.encode(body))
    except RefusalError as error:
        assert error.code == "invalid_request"
        assert error.param is not None
        assert error.param.split(".")[0].split("[")[0] in CompletionRequest.__struct_fields__


@pytest.mark.parametrize(
    ("body", "raw", "param"),
    [
        (COMPLETION, b'{"prompt": "a", "x\\u0000": {"y": [1e999]}}', "x\0"),
        (RERANK, b'{"query": "a", "documents": ["a", {"text": "b", "id": 1}]}', "documents[1].id"),
    ],
)
def test_strictly_read_an_unknown_field_is_refused(body, raw, param):
    body.decode(raw)
    with pytest.raises(RefusalError) as caught:
        body.decode(raw, strictly=True)
    assert (caught.value.code, caught.value.param) == ("invalid_request", param)
    assert caught.value.message == f"{param}: is unknown"


def test_strictly_read_known_fields_mean_what_they_did():
    raw = (
        b'{"prompt": ["a"], "logit_bias": {"1": 2}, "stream_options": null, "response_format":'
        b' {"type": "json_schema", "json_schema": {"schema": {"x": 1}}}}'
    )
    loose, strictly = COMPLETION.decode(raw), COMPLETION.decode(raw, strictly=True)
    assert isinstance(strictly, CompletionRequest)
    assert msgspec.json.encode(strictly) == msgspec.json.encode(loose)


STRUCTS = structs_of(all_endpoints())


@pytest.mark.parametrize("name", known_options().endpoints)
def test_every_body_can_be_read_strictly(name):
    with pytest.raises(RefusalError) as caught:
        Body(STRUCTS[name]).decode(b'{"no such field": 1}', strictly=True)
    assert caught.value.param == "no such field"
