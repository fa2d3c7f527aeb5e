"""`/v1/embed` and `/v2/embed`: Cohere's shapes, and what the engine is asked for."""

import base64
from typing import Any

import numpy as np
import pytest

from engine_core.messages import Tokenization
from server.api.embeddings import quantize
from tests.server.api.test_refused_fields import inputs_of
from tests.server.conftest import Deployment
from tests.server.fake_engine import vector_of

PATHS = ["/v1/embed", "/v2/embed"]
LEFT_5 = Tokenization(truncate_to=5, truncation_side="left")


def embed(
    encoders: Deployment, path: str = "/v2/embed", model: str = "plain", **fields: Any
) -> Any:
    return encoders.ask(path, **{"model": model, "texts": ["a"]} | fields)


def vectors_of(*texts: str) -> np.ndarray:
    return np.stack([vector_of(text, 8) for text in texts])


def test_the_first_version_answers_floats(encoders) -> None:
    found = embed(encoders, "/v1/embed", texts=["a", "b"])
    assert found["response_type"] == "embeddings_floats"
    np.testing.assert_allclose(found["embeddings"], vectors_of("a", "b"), atol=1e-6)
    assert found["id"].startswith("embed-")
    assert found["texts"] == ["a", "b"]
    units = {"image_tokens": 0, "input_tokens": found["meta"]["billed_units"]["input_tokens"]}
    assert found["meta"] == {"api_version": {"version": "1"}, "billed_units": units}
    assert units["input_tokens"] > 0


def test_the_second_version_answers_by_type(encoders) -> None:
    found = embed(encoders)
    assert found["response_type"] == "embeddings_by_type"
    assert list(found["embeddings"]) == ["float"]
    assert found["meta"]["api_version"] == {"version": "2"}


@pytest.mark.parametrize("path", PATHS)
def test_several_types_at_once(encoders, path) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    found = embed(encoders, path, texts=["a", "b"], embedding_types=kinds)
    assert found["response_type"] == "embeddings_by_type"
    vectors, whole = found["embeddings"], vectors_of("a", "b")
    assert list(vectors) == kinds
    np.testing.assert_allclose(vectors["float"], whole, atol=1e-6)
    for kind in ("int8", "binary", "ubinary"):
        assert vectors[kind] == quantize(whole, kind).tolist()
    assert (np.array(vectors["uint8"]) - 128).tolist() == vectors["int8"]
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in vectors["base64"]]
    np.testing.assert_allclose(decoded, whole, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_inputs_are_texts_in_parts(encoders, path) -> None:
    found = embed(encoders, path, texts=None, inputs=inputs_of(["a"], ["b", "c"]))
    assert encoders.job("plain").texts == found["texts"] == ["a", "b\nc"]


@pytest.mark.parametrize(
    ("fields", "tokenization"),
    [
        ({}, Tokenization(truncate_to=2048)),
        ({"truncate": "END"}, Tokenization(truncate_to=2048)),
        ({"truncate": "START"}, Tokenization(truncate_to=2048, truncation_side="left")),
        ({"truncate": "NONE"}, Tokenization()),
        ({"max_tokens": 5}, Tokenization(truncate_to=5)),
        ({"max_tokens": 2**31 - 1}, Tokenization(truncate_to=2048)),
        ({"max_tokens": 5, "truncate": "START"}, LEFT_5),
    ],
)
def test_texts_are_cut_unless_told_otherwise(encoders, fields, tokenization) -> None:
    embed(encoders, texts=["a b"], priority=-3, **fields)
    job = encoders.job("plain")
    assert (job.tokenization, job.priority) == (tokenization, -3)


@pytest.mark.parametrize(
    ("model", "kind", "prompt"),
    [
        ("prompted", "search_query", "Q: "),
        ("prompted", "search_document", "P: "),
        ("prompted", "clustering", "K: "),
        ("prompted", "classification", ""),
        ("prompted", None, ""),
        ("plain", "search_query", ""),
    ],
)
def test_the_kind_of_input_chooses_the_prompt(encoders, model, kind, prompt) -> None:
    found = embed(encoders, "/v1/embed", model, input_type=kind)
    assert encoders.job(model).texts == [f"{prompt}a"]
    assert found["texts"] == ["a"]


def test_a_prompt_that_is_not_pooled_stays_whole(encoders) -> None:
    body = {"model": "unpooled", "texts": ["a"], "input_type": "search_query"}
    assert encoders.refusal("/v2/embed", **body, truncate="START")["param"] == "truncate"
