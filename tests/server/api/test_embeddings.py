"""`/v1/embeddings`: its shape, what the engine is asked for, what is refused."""

import base64
from typing import Any

import numpy as np
import pytest

from engine_core.messages import EncodeJob, Tokenization
from server.api.embeddings import quantize
from tests.server.api.conftest import EMBEDDERS
from tests.server.conftest import Deployment
from tests.server.fake_engine import vector_of

PATH = "/v1/embeddings"
CUT_LEFT = {"truncation": True, "truncation_side": "left"}
LEFT_5 = Tokenization(truncate_to=5, truncation_side="left")


def embed(encoders: Deployment, model: str, **fields: Any) -> list[Any]:
    """The vector of each input, as it is written."""
    data = encoders.ask(PATH, **{"model": model, "input": "a"} | fields)["data"]
    return [entry["embedding"] for entry in data]


def job_of(encoders: Deployment, model: str, **fields: Any) -> EncodeJob:
    embed(encoders, model, **fields)
    return encoders.job(model)


def test_the_shape(deployment):
    body = deployment.ask(PATH, model="embedder", input="Hello", user="somebody")
    vector = body["data"][0].pop("embedding")
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0}],
        "model": "embedder",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    np.testing.assert_allclose(vector, vector_of("Hello", 8), atol=1e-6)


@pytest.mark.parametrize("value", ["a b", ["a b", "c", "a b"], [7, 8, 9], [[7, 8], [9], [7]]])
def test_every_form_of_input(deployment, tokenizer, value):
    body = deployment.ask(PATH, input=value)
    job = deployment.job("embedder")
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    items = [value] if isinstance(value, str) else value
    if job.ids:
        items = [np.array(own, np.int32).tobytes() for own in (value if job.ids[1:] else [value])]
    expected = [vector_of(item, 8) for item in items]
    vectors = [entry["embedding"] for entry in body["data"]]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    ids = items if job.ids else tokenizer.encode(items)
    assert body["usage"]["prompt_tokens"] == sum(len(tokens) // 4 for tokens in ids)


@pytest.mark.parametrize("model", EMBEDDERS)
@pytest.mark.parametrize("size", [8, None])
def test_every_model_has_its_own_size(encoders, model, size) -> None:
    assert np.shape(embed(encoders, model, dimensions=size, input=[[7]])) == (1, 8)


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float32", "<f4"), ("float16", "<f2"), ("int8", "i1"), ("binary", "i1"), ("ubinary", "u1")],
)
def test_every_type_in_both_encodings(encoders, dtype, kind, encoding) -> None:
    texts = ["a", "b", "c"]
    data = embed(encoders, "plain", input=texts, embed_dtype=dtype, encoding_format=encoding)
    expected = quantize(np.stack([vector_of(text, 8) for text in texts]), dtype)
    if encoding == "base64":
        data = [np.frombuffer(base64.b64decode(row), kind).tolist() for row in data]
    elif dtype in ("int8", "binary", "ubinary"):
        assert all(type(number) is int for row in data for number in row)
    np.testing.assert_allclose(data, expected, atol=1e-6)


def test_a_type_is_of_the_vector_that_was_cut(encoders) -> None:
    expected = quantize(vector_of("a", 8)[None, :3], "int8")
    assert embed(encoders, "any-size", dimensions=3, embed_dtype="int8") == expected.tolist()


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
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, LEFT_5),
        ({"add_special_tokens": False}, Tokenization(add_special_tokens=False)),
        ({"add_special_tokens": True}, Tokenization()),
    ],
)
@pytest.mark.parametrize("value", [["a b"], [[3, 4]]])
def test_the_engine_is_told_how_to_tokenize(encoders, fields, tokenization, value) -> None:
    assert job_of(encoders, "plain", input=value, **fields).tokenization == tokenization


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
def test_prompts_go_before_texts(encoders, model, fields, prompt) -> None:
    texts = job_of(encoders, model, input=["a", "ü"], **fields).texts
    assert texts == [f"{prompt}a", f"{prompt}ü"]


SIZES: list[tuple[str, list[Any], list[str]]] = [
    ("plain", [4], ["8 numbers", "cannot be cut"]),
    ("listed", [3, 9], ["2, 4, 8"]),
    ("any-size", [9, 2**31 - 1], ["1 to 8"]),
    ("any-size", [0, -1], [">= 1"]),
    ("any-size", [2**63, 2**64], []),
    ("any-size", [4.0, True, "4", [4]], ["`int"]),
]
"""Those that are refused, and what the message says beside the size."""


@pytest.mark.parametrize(
    ("model", "fields", "param", "words"),
    [
        *[
            (model, {"dimensions": size}, "dimensions", words)
            for model, sizes, words in SIZES
            for size in sizes
        ],
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
        ("unpooled", CUT_LEFT | {"input_type": "query"}, "truncation_side", ["does not pool its"]),
    ],
)
def test_sizes_and_prompts_that_are_refused(encoders, model, fields, param, words) -> None:
    error = encoders.refusal(PATH, **{"model": model, "input": "a"} | fields)
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert all(word in error["message"] for word in words), error
    assert encoders.engines[model].received == []


@pytest.mark.parametrize(
    ("model", "fields", "unpooled"),
    [
        ("unpooled", {"prompt_name": "query"}, 4),
        ("unpooled", {"input_type": "document", "truncation": True}, 4),
        ("unpooled", {"input_type": "document", "add_special_tokens": False}, 3),
        ("unpooled", {"prompt_name": "plain"}, 0),
        ("unpooled", CUT_LEFT, 0),
        ("unpooled", {}, 0),
        ("prompted", {"prompt_name": "query"}, 0),
    ],
)
def test_a_prompt_is_left_out_of_the_pooling(encoders, model, fields, unpooled) -> None:
    assert job_of(encoders, model, **fields).tokenization.unpooled == unpooled


@pytest.mark.parametrize("fields", [{}, {"input_type": "classification"}])
def test_ids_are_taken_as_they_are(encoders, fields) -> None:
    job = job_of(encoders, "default", input=[[3, 4], [5]], **fields)
    assert [np.frombuffer(ids, np.int32).tolist() for ids in job.ids] == [[3, 4], [5]]


def test_voyage_names(encoders) -> None:
    theirs = {"truncation": True, "output_dimension": 4, "output_dtype": "int8"}
    ours = {"truncate_prompt_tokens": -1, "dimensions": 4, "embed_dtype": "int8"}
    answers = [embed(encoders, "listed", **fields) for fields in (theirs, ours, theirs | ours)]
    assert answers[0] == answers[1] == answers[2]
    assert embed(encoders, "plain", output_dtype="float")
