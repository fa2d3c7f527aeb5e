"""`/pooling` answers what `/v1/embeddings`, `/embed_all` and `/v1/classify` do, in vLLM's shape."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine_core.messages import EncodeJob, Tokenization
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import ANY_PRIORITY, server_config

LABELS = ("good", "bad", "ugly")
TEXTS = ["a", "b c d"]
EMBEDDER, SORTER = "pool-vectors", "pool-sorter"


@pytest.fixture(scope="module")
def pools(folder, tokenizer) -> Iterator[Deployment]:
    builder = DeploymentBuilder(folder, tokenizer)
    models = [builder.model(EMBEDDER, "embed"), builder.model(SORTER, "classify", LABELS)]
    yield builder.open(server_config(*models, limits=ANY_PRIORITY))
    builder.close()


def answer(pools: Deployment, path: str = "/pooling", **fields: Any) -> Any:
    response = pools.post(path, fields)
    assert response.status_code == 200, response.text
    return response.json()


def pooled(pools: Deployment, model: str, **fields: Any) -> list[Any]:
    data = answer(pools, model=model, input=TEXTS, **fields)["data"]
    assert [(entry["index"], entry["object"]) for entry in data] == [(0, "pooling"), (1, "pooling")]
    return [entry["data"] for entry in data]


def test_the_answer_is_vllms(pools: Deployment) -> None:
    found = answer(pools, model=EMBEDDER, input="a")
    assert set(found) == {"id", "object", "created", "model", "data", "usage"}
    assert found["id"].startswith("pool-")
    assert (found["object"], found["model"]) == ("list", EMBEDDER)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("task", [{}, {"task": None}, {"task": "embed"}])
@pytest.mark.parametrize("activation", [{}, {"use_activation": True}, {"use_activation": False}])
def test_an_embedder_answers_its_vectors(pools: Deployment, task, activation) -> None:
    vectors = answer(pools, "/v1/embeddings", model=EMBEDDER, input=TEXTS, **activation)["data"]
    assert pooled(pools, EMBEDDER, **task, **activation) == [each["embedding"] for each in vectors]


def test_an_embedder_answers_the_states_of_tokens(pools: Deployment) -> None:
    states = answer(pools, "/embed_all", model=EMBEDDER, inputs=TEXTS)
    assert pooled(pools, EMBEDDER, task="token_embed", use_activation=False) == states
    found = pooled(pools, EMBEDDER, task="token_embed", use_activation=True)
    for own, raw in zip(found, states, strict=True):
        lengths = np.linalg.norm(raw, axis=1, keepdims=True)
        np.testing.assert_allclose(own, np.array(raw) / lengths, atol=1e-6)


@pytest.mark.parametrize("task", [{}, {"task": "classify"}])
@pytest.mark.parametrize("activation", [{}, {"use_activation": True}, {"use_activation": False}])
def test_a_classifier_answers_its_scores(pools: Deployment, task, activation) -> None:
    labels = answer(pools, "/v1/classify", model=SORTER, input=TEXTS, **activation)["data"]
    assert pooled(pools, SORTER, **task, **activation) == [each["probs"] for each in labels]


@pytest.mark.parametrize(
    ("model", "task"), [(EMBEDDER, "embed"), (EMBEDDER, "token_embed"), (SORTER, "classify")]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_base64_has_the_same_numbers(pools: Deployment, model: str, task: str, dtype: str) -> None:
    numbers = pooled(pools, model, task=task, embed_dtype=dtype)
    encoded = pooled(pools, model, task=task, embed_dtype=dtype, encoding_format="base64")
    for own, text in zip(numbers, encoded, strict=True):
        found = np.frombuffer(base64.b64decode(text), dtype)
        assert found.tolist() == np.ravel(own).tolist()


@pytest.mark.parametrize(
    ("model", "task"), [(EMBEDDER, "embed"), (EMBEDDER, "token_embed"), (SORTER, "classify")]
)
def test_what_the_engine_is_asked_for(pools: Deployment, model: str, task: str) -> None:
    received = pools.engines[model].received
    received.clear()
    cut = {"truncate_prompt_tokens": 4, "truncation_side": "left"}
    answer(pools, model=model, task=task, input="a", add_special_tokens=False, priority=3, **cut)
    (job,) = [job for job in received if isinstance(job, EncodeJob)]
    assert job.tokenization == Tokenization(
        add_special_tokens=False, truncate_to=4, truncation_side="left"
    )
    assert (job.token_states, job.priority) == (task == "token_embed", 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "token_classify"}, "task: "),
        ({"task": "score"}, "task: "),
        ({"task": "plugin"}, "task: "),
        (
            {"task": "classify"},
            f"task: model {EMBEDDER} serves embed and token_embed, not classify",
        ),
        ({"model": SORTER, "task": "embed"}, f"task: model {SORTER} serves classify, not embed"),
        ({"embed_dtype": "bfloat16"}, "embed_dtype: "),
        ({"encoding_format": "bytes"}, "encoding_format: "),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens: "),
        ({"model": SORTER, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens: "),
        ({"input": ["a", ""]}, "input[1]: "),
        ({"dimensions": 4}, "dimensions is known"),
    ],
)
def test_bad_input_is_named(pools: Deployment, fields: dict[str, Any], message: str) -> None:
    response = pools.post("/pooling", {"model": EMBEDDER, "input": "a", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message), response.text
