import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.body import Body
from server.errors import APIError
from server.schemas.completions import CompletionOptionsNotServed, CompletionRequest
from server.schemas.rerank import RerankRequest

COMPLETION = Body(CompletionRequest, not_served=CompletionOptionsNotServed)
RERANK = Body(RerankRequest)


def fault(body: Body, raw: bytes) -> APIError:
    with pytest.raises(APIError) as caught:
        body.decode(raw)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"null", None),
        (b'{"prompt": "a"} x', None),
        (b"{}", "prompt"),
        (b'{"prompt": null}', "prompt"),
        (b'{"prompt": ["a", true]}', "prompt[1]"),
        (b'{"prompt": [[1], [2, "a"]]}', "prompt[1][1]"),
        (b'{"prompt": "a", "max_tokens": -1}', "max_tokens"),
        (b'{"prompt": "a", "max_tokens": 0}', "max_tokens"),
        (b'{"prompt": "a", "max_tokens": 1e3}', "max_tokens"),
        (b'{"prompt": "a", "max_tokens": 9223372036854775808}', "max_tokens"),
        (b'{"prompt": "a", "seed": 9223372036854775808}', "seed"),
        (b'{"prompt": "a", "temperature": 1e309}', "temperature"),
        (b'{"prompt": "a", "temperature": 2.1}', "temperature"),
        (b'{"prompt": "a", "temperature": NaN}', None),
        (b'{"prompt": "a", "temperature": -Infinity}', None),
        (b'{"prompt": "a", "top_p": 0}', "top_p"),
        (b'{"prompt": "a", "top_k": -2}', "top_k"),
        (b'{"prompt": "a", "logprobs": 6}', "logprobs"),
        (b'{"prompt": "a", "logprobs": true}', "logprobs"),
        (b'{"prompt": "a", "stop": ""}', "stop"),
        (b'{"prompt": "a", "stop": ["a", ""]}', "stop[1]"),
        (b'{"prompt": "a", "stream": 1}', "stream"),
        (
            b'{"prompt": "a", "stream_options": {"include_usage": "yes"}}',
            "stream_options.include_usage",
        ),
        (b'{"prompt": "\\ud800"}', None),
        (b'{"prompt": "a\xff"}', None),
        (b'{"prompt": "a", "\xff": 1}', None),
        (b'{"prompt": ' + b"[" * 100_000, "prompt[0][0]"),
        (b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
        (b'\xef\xbb\xbf{"prompt": "a"}', None),
    ],
)
def test_a_fault_names_its_field(raw, param):
    assert fault(COMPLETION, raw).param == param


@pytest.mark.parametrize(
    ("field", "within", "beyond"),
    [
        ("min_p", [0, 0.05, 1], [-0.01, 1.01]),
        ("presence_penalty", [-2, 0, 2.0], [-2.01, 2.01]),
        ("frequency_penalty", [-2.0, 0, 2], [-2.01, 2.01]),
        ("repetition_penalty", [0.01, 1, 2], [-1, 0, 1e-40, 2.01]),
        ("logit_bias", [{}, {"0": -100, "2147483647": 100.0}, dict.fromkeys(range(300), 1)],
         [{"-1": 0}, {"2147483648": 0}, {"1": -100.1}, {"1": 101}, dict.fromkeys(range(301), 1)]),
    ],
)  # fmt: skip
def test_the_ranges_of_sampling_fields(field, within, beyond):
    for value in [None, *within]:
        COMPLETION.decode(msgspec.json.encode({"prompt": "a", field: value}))
    for value in beyond:
        error = fault(COMPLETION, msgspec.json.encode({"prompt": "a", field: value}))
        assert error.param == field
        assert field in error.message
    for value in ["1", True, [1]]:
        error = fault(COMPLETION, msgspec.json.encode({"prompt": "a", field: value}))
        assert error.param == field


@pytest.mark.parametrize("key", ["hello", "", "1.0", "1e3", " 1", "0x1", "-1", "9" * 30])
def test_a_key_that_is_no_token_id_is_told_apart_from_a_value(key):
    error = fault(COMPLETION, msgspec.json.encode({"prompt": "a", "logit_bias": {key: 1}}))
    assert error.param == "logit_bias"
    assert error.message.startswith("a key of logit_bias: ")


@pytest.mark.parametrize("value", ["1", True, None, [], {}])
def test_a_bias_that_is_no_number(value):
    error = fault(COMPLETION, msgspec.json.encode({"prompt": "a", "logit_bias": {"1": value}}))
    assert error.param == "logit_bias"
    assert error.message.startswith("logit_bias: expected `float`")


def test_a_missing_field_in_a_list_is_named_with_its_index():
    error = fault(RERANK, b'{"query": "a", "documents": ["a", {"title": "b"}]}')
    assert error.param == "documents[1].text"
    assert error.message == "documents[1].text: is required"


@pytest.mark.parametrize(
    ("field", "neutral", "other"),
    [
        ("suffix", [None, ""], "the end"),
        ("best_of", [None, 1], 2),
        ("min_tokens", [None, 0], 3),
        ("stop_token_ids", [None, []], [2]),
        ("bad_words", [None, []], ["a"]),
        ("allowed_token_ids", [None, []], [1]),
        ("include_stop_str_in_output", [None, False], True),
        ("use_beam_search", [None, False], True),
        ("skip_special_tokens", [None, True], False),
        ("add_special_tokens", [None, True], False),
        ("prompt_logprobs", [None], 1),
        ("truncate_prompt_tokens", [None], 10),
    ],
)
def test_what_is_known_but_not_served_is_refused_by_name_unless_neutral(field, neutral, other):
    assert field in CompletionOptionsNotServed.__annotations__
    for value in neutral:
        COMPLETION.decode(msgspec.json.encode({"prompt": "a", field: value}))
    error = fault(COMPLETION, msgspec.json.encode({"prompt": "a", field: other}))
    assert error.param == field
    assert error.message.startswith(f"{field} is known but not served")


def test_unknown_fields_are_ignored():
    assert COMPLETION.decode(b'{"prompt": "a", "x\\u0000": {"y": [1e999]}}').prompt == "a"


@given(raw=st.binary(max_size=60))
def test_no_bytes_are_more_than_a_bad_request(raw):
    try:
        COMPLETION.decode(raw)
    except APIError as error:
        assert error.status == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(body=st.dictionaries(st.sampled_from(CompletionRequest.__struct_fields__), json_values))
def test_no_value_of_any_field_is_more_than_a_bad_request(body):
    try:
        COMPLETION.decode(msgspec.json.encode(body))
    except APIError as error:
        assert error.status == 400
        assert error.param is not None
        assert error.param.split(".")[0].split("[")[0] in CompletionRequest.__struct_fields__
