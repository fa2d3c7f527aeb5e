"""`/v1/embed` and `/v2/embed`: Cohere's shapes, and what the engine is asked for."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from engine_core.messages import EncodeJob, Failed, Tokenization
from server.api.embeddings import quantize
from tests.server.conftest import Deployment
from tests.server.embedders import embedder_deployment
from tests.server.fake_engine import Script, vector_of
from workers.contract.model_config import EmbeddingConfig

PROMPTS = {"query": "Q: ", "passage": "P: ", "clustering": "C: "}
DECLARED = {
    "plain": EmbeddingConfig(),
    "short": EmbeddingConfig(is_matryoshka=True),
    "prompted": EmbeddingConfig(prompts=PROMPTS),
    "unpooled": EmbeddingConfig(prompts=PROMPTS),
}
PATHS = ["/v1/embed", "/v2/embed"]


@pytest.fixture(scope="module")
def embedders(folder, tokenizer) -> Iterator[Deployment]:
    declared = {f"co-{name}": each for name, each in DECLARED.items()}
    with embedder_deployment(folder, tokenizer, declared) as deployment:
        yield deployment


@pytest.fixture
def ask(embedders: Deployment):
    """Post a request; the answer, and the jobs that it made."""

    def post(path: str, model: str, **fields: Any) -> tuple[httpx.Response, list[EncodeJob]]:
        received = embedders.engines[f"co-{model}"].received
        received.clear()
        response = embedders.post(path, {"model": f"co-{model}", **fields})
        return response, [job for job in received if isinstance(job, EncodeJob)]

    return post


def answer(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()


def inputs_of(*contents: list[str]) -> list[dict[str, Any]]:
    return [
        {"content": [{"type": "text", "text": text} for text in content]} for content in contents
    ]


def vectors_of(*texts: str) -> np.ndarray:
    return np.stack([vector_of(text, 8) for text in texts])


def test_the_first_version_answers_floats(ask) -> None:
    response, _ = ask("/v1/embed", "plain", texts=["a", "b"])
    found = answer(response)
    assert found["response_type"] == "embeddings_floats"
    np.testing.assert_allclose(found["embeddings"], vectors_of("a", "b"), atol=1e-6)
    assert found["id"].startswith("embed-")
    assert found["texts"] == ["a", "b"]
    units = {"input_tokens": found["meta"]["billed_units"]["input_tokens"]}
    assert found["meta"] == {"api_version": {"version": "1"}, "billed_units": units}
    assert units["input_tokens"] > 0


def test_the_second_version_answers_by_type(ask) -> None:
    found = answer(ask("/v2/embed", "plain", texts=["a"])[0])
    assert found["response_type"] == "embeddings_by_type"
    assert list(found["embeddings"]) == ["float"]
    assert found["meta"]["api_version"] == {"version": "2"}


@pytest.mark.parametrize("path", PATHS)
def test_several_types_at_once(ask, path) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    found = answer(ask(path, "plain", texts=["a", "b"], embedding_types=kinds)[0])
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
def test_inputs_are_texts_in_parts(ask, path) -> None:
    response, (job,) = ask(path, "plain", inputs=inputs_of(["a"], ["b", "c"]))
    assert job.texts == ["a", "b\nc"]
    assert answer(response)["texts"] == ["a", "b\nc"]


def test_a_vector_is_cut(ask) -> None:
    found = answer(ask("/v2/embed", "short", texts=["a"], output_dimension=3)[0])
    expected = vectors_of("a")[:, :3] / np.linalg.norm(vectors_of("a")[:, :3])
    np.testing.assert_allclose(found["embeddings"]["float"], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "tokenization"),
    [
        ({}, Tokenization(truncate_to=2048)),
        ({"truncate": "END"}, Tokenization(truncate_to=2048)),
        ({"truncate": "START"}, Tokenization(truncate_to=2048, truncation_side="left")),
        ({"truncate": "NONE"}, Tokenization()),
        ({"max_tokens": 5}, Tokenization(truncate_to=5)),
        ({"max_tokens": 2**31 - 1}, Tokenization(truncate_to=2048)),
        (
            {"max_tokens": 5, "truncate": "START"},
            Tokenization(truncate_to=5, truncation_side="left"),
        ),
    ],
)
def test_texts_are_cut_unless_told_otherwise(ask, fields, tokenization) -> None:
    response, (job,) = ask("/v2/embed", "plain", texts=["a b"], **fields)
    assert response.status_code == 200
    assert job.tokenization == tokenization


@pytest.mark.parametrize(
    ("model", "kind", "prompt"),
    [
        ("prompted", "search_query", "Q: "),
        ("prompted", "search_document", "P: "),
        ("prompted", "clustering", "C: "),
        ("prompted", "classification", ""),
        ("prompted", None, ""),
        ("plain", "search_query", ""),
    ],
)
def test_the_kind_of_input_chooses_the_prompt(ask, model, kind, prompt) -> None:
    response, (job,) = ask("/v1/embed", model, texts=["a"], input_type=kind)
    assert job.texts == [f"{prompt}a"]
    assert answer(response)["texts"] == ["a"]


def test_priority_reaches_the_engine(ask) -> None:
    _, (job,) = ask("/v2/embed", "plain", texts=["a"], priority=-3)
    assert job.priority == -3


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": "a"}, "texts"),
        ({"texts": ["a"], "inputs": inputs_of(["a"])}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": [{"content": []}]}, "inputs[0].content"),
        ({"inputs": inputs_of(["a"], [""])}, "inputs[1]"),
        ({"inputs": [*inputs_of(["a"]), {"content": [IMAGE]}]}, "inputs[1].content[0].type"),
        (
            {"inputs": [{"content": [IMAGE | {"type": "text", "text": "a"}]}]},
            "inputs[0].content[0].image_url",
        ),
        ({"inputs": [{"content": [{"type": "text"}]}]}, "inputs[0].content[0].text"),
        ({"images": ["data:image/png;base64,AAAA"]}, "images"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
        ({"texts": ["a"], "truncate": "NONE", "max_tokens": 4}, "max_tokens"),
        ({"texts": ["a"], "max_tokens": 0}, "max_tokens"),
        ({"texts": ["a"], "input_type": "image"}, "input_type"),
        ({"texts": ["a"], "embedding_types": []}, "embedding_types"),
        ({"texts": ["a"], "embedding_types": ["float", "int4"]}, "embedding_types[1]"),
        ({"texts": ["a"], "output_dimension": 4}, "output_dimension"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_refused_is_named(ask, path, fields, param) -> None:
    response, jobs = ask(path, "plain", **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert error["message"].startswith(param)
    assert jobs == []


def test_a_prompt_that_is_not_pooled_stays_whole(ask) -> None:
    fields = {"texts": ["a"], "input_type": "search_query", "truncate": "START"}
    response, _ = ask("/v2/embed", "unpooled", **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "truncate"


def test_too_many_texts(ask) -> None:
    response, _ = ask("/v1/embed", "plain", texts=["a"] * 2049)
    assert response.json()["error"]["code"] == "too_large"
    assert response.json()["error"]["param"] == "texts"


@pytest.mark.parametrize(
    ("field", "value"), [("texts", ["a", "b"]), ("inputs", inputs_of(["a"], ["b"]))]
)
def test_a_refusal_names_the_request_s_field(ask, embedders, field, value) -> None:
    engine = embedders.engines["co-plain"]
    message = "input[1] has 9 tokens"
    engine.script = Script(refusal=Failed(0, "context_length_exceeded", message, "input[1]"))
    response, _ = ask("/v2/embed", "plain", truncate="NONE", **{field: value})
    engine.script = Script()
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", f"{field}[1]")
    assert error["message"].startswith(f"{field}[1] has")
