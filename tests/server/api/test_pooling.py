"""`/pooling` answers what `/v1/embeddings`, `/embed_all` and `/v1/classify` do, in vLLM's shape."""

import base64
from typing import Any

import numpy as np
import pytest

from engine_core.messages import Tokenization
from tests.server.conftest import Deployment

TEXTS = ["a", "b c d"]
TASKS = [("plain", "embed"), ("plain", "token_embed"), ("sorter", "classify")]
ACTIVATIONS = [{}, {"use_activation": True}, {"use_activation": False}]


def pooled(encoders: Deployment, model: str, **fields: Any) -> list[Any]:
    data = encoders.ask("/pooling", model=model, input=TEXTS, **fields)["data"]
    assert [(entry["index"], entry["object"]) for entry in data] == [(0, "pooling"), (1, "pooling")]
    return [entry["data"] for entry in data]


def test_the_answer_is_vllms(encoders: Deployment) -> None:
    found = encoders.ask("/pooling", model="plain", input="a")
    assert set(found) == {"id", "object", "created", "model", "data", "usage"}
    assert found["id"].startswith("pool-")
    assert (found["object"], found["model"]) == ("list", "plain")
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("task", [{}, {"task": None}, {"task": "embed"}])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_embedder_answers_its_vectors(encoders: Deployment, task, activation) -> None:
    vectors = encoders.ask("/v1/embeddings", model="plain", input=TEXTS, **activation)["data"]
    found = pooled(encoders, "plain", **task, **activation)
    assert found == [each["embedding"] for each in vectors]


def test_an_embedder_answers_the_states_of_tokens(encoders: Deployment) -> None:
    states = encoders.ask("/embed_all", model="plain", inputs=TEXTS)
    assert pooled(encoders, "plain", task="token_embed", use_activation=False) == states
    found = pooled(encoders, "plain", task="token_embed", use_activation=True)
    for own, raw in zip(found, states, strict=True):
        lengths = np.linalg.norm(raw, axis=1, keepdims=True)
        np.testing.assert_allclose(own, np.array(raw) / lengths, atol=1e-6)


@pytest.mark.parametrize("task", [{}, {"task": "classify"}])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_classifier_answers_its_scores(encoders: Deployment, task, activation) -> None:
    labels = encoders.ask("/v1/classify", model="sorter", input=TEXTS, **activation)["data"]
    found = np.array(pooled(encoders, "sorter", **task, **activation), np.float32)
    assert found.tolist() == [each["probs"] for each in labels]


@pytest.mark.parametrize(("model", "task"), TASKS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_base64_has_the_same_numbers(encoders: Deployment, model, task, dtype) -> None:
    numbers = pooled(encoders, model, task=task, embed_dtype=dtype)
    encoded = pooled(encoders, model, task=task, embed_dtype=dtype, encoding_format="base64")
    for own, text in zip(numbers, encoded, strict=True):
        found = np.frombuffer(base64.b64decode(text), dtype)
        assert found.tolist() == np.ravel(own).astype(dtype).tolist()


@pytest.mark.parametrize(("model", "task"), TASKS)
def test_what_the_engine_is_asked_for(encoders: Deployment, model: str, task: str) -> None:
    encoders.ask(
        "/pooling", model=model, task=task, input="a", add_special_tokens=False, priority=3,
        truncate_prompt_tokens=4, truncation_side="left",
    )  # fmt: skip
    job = encoders.job(model)
    assert job.tokenization == Tokenization(
        add_special_tokens=False, truncate_to=4, truncation_side="left"
    )
    outputs = ("states",) if task == "token_embed" else ("vector",)
    assert (job.outputs, job.priority) == (outputs, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "token_classify"}, "task: "),
        ({"task": "score"}, "task: "),
        ({"task": "plugin"}, "task: "),
        ({"task": "classify"}, "task: model plain serves embed and token_embed, not classify"),
        ({"model": "sorter", "task": "embed"}, "task: model sorter serves classify, not embed"),
        ({"embed_dtype": "bfloat16"}, "embed_dtype: "),
        ({"encoding_format": "bytes"}, "encoding_format: "),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens: "),
        ({"model": "sorter", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens: "),
        ({"input": ["a", ""]}, "input[1]: "),
    ],
)
def test_bad_input_is_named(encoders: Deployment, fields: dict[str, Any], message: str) -> None:
    error = encoders.refusal("/pooling", **{"model": "plain", "input": "a"} | fields)
    assert error["message"].startswith(message), error
