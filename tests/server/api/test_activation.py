"""`normalize`, whose other names are `use_activation` and `normalized`, and `use_activation` of
scores: what a model computed, before and after its last step."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from server.settings.settings import ServedModel
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.fake_engine import LENGTH, score_of, vector_of
from tests.server.support import server_config
from workers.contract.model_config import EmbeddingConfig

NAMES = ("normalize", "use_activation", "normalized")
UNIT = vector_of("a", 8)
QUERY, TEXTS = "the water falls", ["the gate", "the water", "falls"]


def changed(served: ServedModel, **fields: Any) -> ServedModel:
    model = msgspec.structs.replace(served.execution.model, **fields)
    execution = msgspec.structs.replace(served.execution, model=model)
    engine = msgspec.structs.replace(served.engine, execution=execution)
    return msgspec.structs.replace(served, engine=engine)


@pytest.fixture(scope="module")
def mixed_deployment(folder, tokenizer) -> Iterator[Deployment]:
    """An embedder that normalises, one that does not, and a reranker with probabilities."""
    builder = DeploymentBuilder(folder, tokenizer)
    sizes = EmbeddingConfig(is_matryoshka=True)
    models = [
        changed(builder.model("unit", "embed"), embedding=sizes),
        changed(builder.model("long", "embed"), modules=()),
        changed(builder.model("judge", "classify"), sigmoid_scores=True),
    ]
    yield builder.open(server_config(*models))
    builder.close()


def embed(deployment: Deployment, **fields: Any) -> np.ndarray:
    response = deployment.post("/v1/embeddings", {"model": "unit", "input": ["a"], **fields})
    assert response.status_code == 200, response.text
    return np.array(response.json()["data"][0]["embedding"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("model", "default"), [("unit", True), ("long", False)])
def test_vectors_before_and_after_normalisation(mixed_deployment, name, model, default):
    for asked in (None, True, False):
        length = 1 if (default if asked is None else asked) else LENGTH
        vector = embed(mixed_deployment, model=model, **{name: asked})
        np.testing.assert_allclose(vector, length * UNIT, atol=1e-6)


def test_a_short_vector_that_is_not_normalised_is_a_part_of_the_long_one(mixed_deployment):
    short = embed(mixed_deployment, dimensions=3, normalize=False)
    assert short.tolist() == embed(mixed_deployment, normalize=False)[:3].tolist()
    short = embed(mixed_deployment, dimensions=3, normalize=True)
    np.testing.assert_allclose(short, UNIT[:3] / np.linalg.norm(UNIT[:3]), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "fields",
    [{"embed_dtype": "int8"}, {"embed_dtype": "binary"}, {"output_dtype": "ubinary"}],
)
def test_directions_have_no_other_length(mixed_deployment, name, fields):
    body = {"model": "long", "input": "a", **fields}
    refused = mixed_deployment.post("/v1/embeddings", {**body, name: False})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    plain = mixed_deployment.post("/v1/embeddings", body).json()["data"]
    assert mixed_deployment.post("/v1/embeddings", {**body, name: True}).json()["data"] == plain


def test_float16_is_not_normalised_either(mixed_deployment):
    vector = embed(mixed_deployment, embed_dtype="float16", normalize=False)
    assert vector.tolist() == (LENGTH * UNIT).astype(np.float16).tolist()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("other", NAMES[1:])
def test_two_names_that_disagree(mixed_deployment, normalize, other):
    body = {"model": "unit", "input": "a", "normalize": normalize}
    agreed = mixed_deployment.post("/v1/embeddings", {**body, other: normalize})
    assert agreed.status_code == 200
    refused = mixed_deployment.post("/v1/embeddings", {**body, other: not normalize})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == other


def relevances(deployment: Deployment, path: str, **fields: Any) -> list[float]:
    """One score for each of TEXTS, in order."""
    if path == "/v1/score":
        asked = {"text_1": QUERY, "text_2": TEXTS}
    else:
        asked = {"query": QUERY, "documents": TEXTS}
    response = deployment.post(path, {"model": "judge", **asked, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    if path == "/v1/score":
        return [entry["score"] for entry in body["data"]]
    ranked = {entry["index"]: entry["relevance_score"] for entry in body["results"]}
    assert [entry["relevance_score"] for entry in body["data"]] == list(ranked.values())
    assert sorted(ranked.values(), reverse=True) == list(ranked.values())
    return [ranked[index] for index in range(len(TEXTS))]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/score"])
def test_raw_scores_and_probabilities(mixed_deployment, path):
    logits = np.array([score_of(QUERY, text) for text in TEXTS])
    for asked, expected in ((False, logits), (True, 1 / (1 + np.exp(-logits)))):
        scores = relevances(mixed_deployment, path, use_activation=asked)
        np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert relevances(mixed_deployment, path) == relevances(
        mixed_deployment, path, use_activation=True
    )
