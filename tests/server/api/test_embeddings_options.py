"""The options of `/v1/embeddings`: what the engine is asked for, what is refused."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_core.messages import EncodeJob, Tokenization
from server.api.embeddings import quantize
from tests.server.conftest import Deployment
from tests.server.embedders import embedder_deployment
from tests.server.fake_engine import vector_of
from workers.contract.model_config import EmbeddingConfig

PROMPTS = {"query": "Q: ", "passage": "P: ", "plain": "", "Clustering": "C: "}
DECLARED = {
    "plain": EmbeddingConfig(),
    "listed": EmbeddingConfig(is_matryoshka=True, matryoshka_dimensions=(2, 4)),
    "any-size": EmbeddingConfig(is_matryoshka=True),
    "prompted": EmbeddingConfig(prompts=PROMPTS),
    "default": EmbeddingConfig(prompts=PROMPTS, default_prompt_name="query"),
    "unpooled": EmbeddingConfig(prompts=PROMPTS),
}


@pytest.fixture(scope="module")
def embedders(folder, tokenizer) -> Iterator[Deployment]:
    with embedder_deployment(folder, tokenizer, DECLARED) as deployment:
        yield deployment


@pytest.fixture
def ask(embedders: Deployment):
    """Post a request; the answer, and the jobs that it made."""

    def post(model: str, **fields: Any) -> tuple[httpx.Response, list[EncodeJob]]:
        received = embedders.engines[model].received
        received.clear()
        response = embedders.post("/v1/embeddings", {"model": model, "input": "a", **fields})
        return response, [job for job in received if isinstance(job, EncodeJob)]

    return post


def refused(response: httpx.Response, param: str, *words: str) -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", param)
    for word in words:
        assert word in error["message"]


def vectors_in(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return np.array([entry["embedding"] for entry in response.json()["data"]])


@pytest.mark.parametrize(("model", "size"), [("listed", 2), ("listed", 4), ("any-size", 3)])
def test_vectors_are_cut_and_renormalised(ask, model, size) -> None:
    response, _ = ask(model, dimensions=size, input=["a", "b"])
    whole = np.stack([vector_of(text, 8) for text in "ab"])[:, :size]
    expected = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors_in(response), expected, atol=1e-6)


@pytest.mark.parametrize("model", DECLARED)
@pytest.mark.parametrize("size", [8, None])
def test_every_model_has_its_own_size(ask, model, size) -> None:
    response, _ = ask(model, dimensions=size, input=[[7]])
    assert vectors_in(response).shape == (1, 8)


@pytest.mark.parametrize(
    ("model", "size", "words"),
    [
        ("plain", 4, ["8 numbers", "cannot be cut"]),
        ("listed", 3, ["3", "2, 4, 8"]),
        ("listed", 9, ["9", "2, 4, 8"]),
        ("any-size", 9, ["1 to 8"]),
        ("any-size", 2**31 - 1, ["1 to 8"]),
        ("any-size", 0, [">= 1"]),
        ("any-size", -1, [">= 1"]),
        ("any-size", 2**63, []),
        ("any-size", 2**64, []),
        ("any-size", 4.0, ["`int"]),
        ("any-size", True, ["`int"]),
        ("any-size", "4", ["`int"]),
        ("any-size", [4], ["`int"]),
    ],
)
def test_sizes_that_are_refused(ask, model, size, words) -> None:
    response, jobs = ask(model, dimensions=size)
    refused(response, "dimensions", *words)
    assert jobs == []


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float32", "<f4"), ("float16", "<f2"), ("int8", "i1"), ("binary", "i1"), ("ubinary", "u1")],
)
def test_every_type_in_both_encodings(ask, dtype, kind, encoding) -> None:
    texts = ["a", "b", "c"]
    response, _ = ask("plain", input=texts, embed_dtype=dtype, encoding_format=encoding)
    expected = quantize(np.stack([vector_of(text, 8) for text in texts]), dtype)
    data = [entry["embedding"] for entry in response.json()["data"]]
    if encoding == "base64":
        data = [np.frombuffer(base64.b64decode(row), kind).tolist() for row in data]
    elif dtype in ("int8", "binary", "ubinary"):
        assert all(type(number) is int for row in data for number in row)
    np.testing.assert_allclose(data, expected, atol=1e-6)


def test_a_type_is_of_the_vector_that_was_cut(ask) -> None:
    response, _ = ask("any-size", dimensions=3, embed_dtype="int8")
    expected = quantize(vector_of("a", 8)[None, :3], "int8")
    assert vectors_in(response).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ["float64", "uint8", "", 8, "FLOAT32"])
def test_types_that_are_refused(ask, dtype) -> None:
    refused(ask("plain", embed_dtype=dtype)[0], "embed_dtype")


@pytest.mark.parametrize(
    ("fields", "tokenization"),
    [
        ({}, Tokenization()),
        ({"truncate_prompt_tokens": None, "truncation_side": None}, Tokenization()),
        ({"truncate_prompt_tokens": 5}, Tokenization(truncate_to=5)),
        ({"truncate_prompt_tokens": -1}, Tokenization(truncate_to=2048)),
        ({"truncate_prompt_tokens": 2048}, Tokenization(truncate_to=2048)),
        ({"truncation": True}, Tokenization(truncate_to=2048)),
        ({"truncation": False}, Tokenization()),
        ({"truncation": True, "truncate_prompt_tokens": 7}, Tokenization(truncate_to=7)),
        (
            {"truncate_prompt_tokens": 5, "truncation_side": "left"},
            Tokenization(truncate_to=5, truncation_side="left"),
        ),
        ({"add_special_tokens": False}, Tokenization(add_special_tokens=False)),
        ({"add_special_tokens": True}, Tokenization()),
    ],
)
@pytest.mark.parametrize("value", [["a b"], [[3, 4]]])
def test_the_engine_is_told_how_to_tokenize(ask, fields, tokenization, value) -> None:
    response, (job,) = ask("plain", input=value, **fields)
    assert response.status_code == 200
    assert job.tokenization == tokenization


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 2049}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 2**63}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5.0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens"),
        ({"truncation": False, "truncate_prompt_tokens": 5}, "truncation"),
        ({"truncation": "END"}, "truncation"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"truncation_side": 1}, "truncation_side"),
        ({"add_special_tokens": "no"}, "add_special_tokens"),
        ({"priority": 2**63}, "priority"),
        ({"priority": -(2**63) - 1}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"priority": True}, "priority"),
        ({"dimensions": 8, "output_dimension": 4}, "output_dimension"),
        ({"output_dimension": 4}, "output_dimension"),
        ({"embed_dtype": "int8", "output_dtype": "binary"}, "output_dtype"),
        ({"output_dtype": "uint8"}, "output_dtype"),
        ({"late_chunking": True}, "late_chunking"),
        ({"endianness": "big"}, "endianness"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)
def test_what_is_refused_is_named(ask, fields, param) -> None:
    response, jobs = ask("plain", **fields)
    refused(response, param)
    assert jobs == []


@pytest.mark.parametrize("priority", [0, -3, 2**63 - 1, -(2**63), None])
def test_priority_reaches_the_engine(ask, priority) -> None:
    _, (job,) = ask("plain", priority=priority)
    assert job.priority == (priority or 0)


@pytest.mark.parametrize(
    ("model", "fields", "prompt"),
    [
        ("plain", {}, ""),
        ("plain", {"input_type": "query"}, ""),
        ("plain", {"input_type": "search_document"}, ""),
        ("prompted", {}, ""),
        ("prompted", {"prompt_name": "query"}, "Q: "),
        ("prompted", {"prompt_name": "Clustering"}, "C: "),
        ("prompted", {"prompt_name": "plain"}, ""),
        ("prompted", {"input_type": "query"}, "Q: "),
        ("prompted", {"input_type": "search_query"}, "Q: "),
        ("prompted", {"input_type": "document"}, "P: "),
        ("prompted", {"input_type": "search_document"}, "P: "),
        ("prompted", {"input_type": "passage"}, "P: "),
        ("prompted", {"input_type": "classification"}, ""),
        ("prompted", {"input_type": None, "prompt_name": None}, ""),
        ("default", {}, "Q: "),
        ("default", {"prompt_name": "plain"}, ""),
        ("default", {"input_type": "document"}, "P: "),
        ("default", {"input_type": "classification"}, ""),
        ("unpooled", {}, ""),
        ("unpooled", {"prompt_name": "plain"}, ""),
    ],
)
def test_prompts_go_before_texts(ask, model, fields, prompt) -> None:
    response, (job,) = ask(model, input=["a", "ü"], **fields)
    assert response.status_code == 200
    assert job.texts == [f"{prompt}a", f"{prompt}ü"]


@pytest.mark.parametrize(
    ("model", "fields", "param", "words"),
    [
        ("plain", {"prompt_name": "query"}, "prompt_name", ["'query'", "no prompts"]),
        ("prompted", {"prompt_name": "Query"}, "prompt_name", ["query, passage, plain"]),
        ("prompted", {"prompt_name": ""}, "prompt_name", ["query, passage, plain"]),
        ("prompted", {"prompt_name": 3}, "prompt_name", []),
        ("plain", {"input_type": "queries"}, "input_type", ["query, search_query, document"]),
        ("prompted", {"input_type": "plain"}, "input_type", ["query, search_query, document"]),
        ("prompted", {"input_type": "query", "prompt_name": "query"}, "prompt_name", ["one of"]),
        ("prompted", {"prompt_name": "query", "input": [3, 4]}, "prompt_name", ["as they are"]),
        ("prompted", {"input_type": "query", "input": [[3]]}, "input_type", ["as they are"]),
        ("plain", {"prompt_name": "query", "input": [3]}, "prompt_name", ["no prompts"]),
        (
            "unpooled",
            {"input_type": "query", "truncation": True, "truncation_side": "left"},
            "truncation_side",
            ["does not pool its prompts"],
        ),
    ],
)
def test_prompts_that_are_refused(ask, model, fields, param, words) -> None:
    response, jobs = ask(model, **fields)
    refused(response, param, *words)
    assert jobs == []


@pytest.mark.parametrize(
    ("model", "fields", "unpooled"),
    [
        ("unpooled", {"prompt_name": "query"}, 4),
        ("unpooled", {"input_type": "document", "truncation": True}, 4),
        ("unpooled", {"input_type": "document", "add_special_tokens": False}, 3),
        ("unpooled", {"prompt_name": "plain"}, 0),
        ("unpooled", {"truncation": True, "truncation_side": "left"}, 0),
        ("unpooled", {}, 0),
        ("prompted", {"prompt_name": "query"}, 0),
    ],
)
def test_a_prompt_is_left_out_of_the_pooling(ask, model, fields, unpooled) -> None:
    response, (job,) = ask(model, **fields)
    assert response.status_code == 200
    assert job.tokenization.unpooled == unpooled


@pytest.mark.parametrize("fields", [{}, {"input_type": "classification"}])
def test_ids_are_taken_as_they_are(ask, fields) -> None:
    response, (job,) = ask("default", input=[[3, 4], [5]], **fields)
    assert response.status_code == 200
    assert [np.frombuffer(ids, np.int32).tolist() for ids in job.ids] == [[3, 4], [5]]


def test_voyage_names(ask) -> None:
    theirs = {"truncation": True, "output_dimension": 4, "output_dtype": "int8"}
    ours = {"truncate_prompt_tokens": -1, "dimensions": 4, "embed_dtype": "int8"}
    answers = [ask("listed", **fields)[0].json() for fields in (theirs, ours, theirs | ours)]
    assert answers[0] == answers[1] == answers[2]
    assert ask("plain", output_dtype="float")[0].status_code == 200


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
FIELDS = [
    "input", "encoding_format", "dimensions", "embed_dtype", "prompt_name", "input_type",
    "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "priority", "user",
    "truncation", "output_dimension", "output_dtype", "endianness", "late_chunking",
]  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(FIELDS), value=JUNK)
def test_junk_gets_an_answer_or_a_400_that_names_it(embedders: Deployment, field, value) -> None:
    body = {"model": "any-size", "input": ["a"], field: value}
    response = embedders.post("/v1/embeddings", body)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"model": "plain", "input": "\\ud800"}', None),
        (b'{"model": "plain", "input": ["a", "\\udfff\\ud800"]}', None),
        (b'{"model": "plain", "input": ["a", 1e309]}', None),
        (b'{"model": "plain", "input": [9223372036854775808]}', None),
        (b'{"model": "plain", "input": "a", "prompt_name": "\\ud800"}', None),
        (b'{"model": "plain", "input": "a", "dimensions": 1e309}', None),
        (b'{"model": "plain", "input": "a", "dimensions": NaN}', None),
    ],
)
def test_odd_json_is_a_400(embedders: Deployment, raw, param) -> None:
    response = embedders.http.post("/v1/embeddings", content=raw)
    assert response.status_code == 400, response.text
    if param is not None:
        assert response.json()["error"]["param"] == param
