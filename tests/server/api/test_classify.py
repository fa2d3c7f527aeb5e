from collections.abc import Iterator

import numpy as np
import pytest

from engine_core.messages import Failed, Tokenization
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.fake_engine import logits_of
from tests.server.support import ANY_PRIORITY, server_config

LABELS = ("good", "bad", "ugly")
TEXTS = ["a b", "a b c d", "e"]


@pytest.fixture(scope="module")
def open_sorting_deployment(folder, tokenizer) -> Iterator[Deployment]:
    builder = DeploymentBuilder(folder, tokenizer)
    models = [builder.model("sorter", "classify", LABELS), builder.model("vectors", "embed")]
    yield builder.open(server_config(*models, limits=ANY_PRIORITY))
    builder.close()


@pytest.fixture
def sorting_deployment(open_sorting_deployment) -> Deployment:
    engine = open_sorting_deployment.engines["sorter"]
    engine.received.clear()
    engine.script.refusal = None
    return open_sorting_deployment


def classify(deployment, **fields) -> dict:
    response = deployment.post("/v1/classify", fields)
    assert response.status_code == 200, response.text
    return response.json()


def logits(texts: list[str]) -> np.ndarray:
    return np.stack([logits_of(None, text, len(LABELS)) for text in texts])


def test_each_text_gets_the_probabilities_of_all_labels(sorting_deployment):
    body = classify(sorting_deployment, input=TEXTS)
    odds = np.exp(logits(TEXTS))
    expected = odds / odds.sum(axis=1, keepdims=True)
    assert body["id"].startswith("classify-")
    assert (body["object"], body["model"]) == ("list", "sorter")
    assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
    assert [entry["label"] for entry in body["data"]] == [LABELS[i] for i in expected.argmax(1)]
    assert {entry["num_classes"] for entry in body["data"]} == {3}
    np.testing.assert_allclose([e["probs"] for e in body["data"]], expected, atol=1e-6)
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 3


def test_another_path_is_the_same(sorting_deployment):
    response = sorting_deployment.post("/classify", {"input": TEXTS})
    assert response.status_code == 200, response.text
    assert response.json()["data"] == classify(sorting_deployment, input=TEXTS)["data"]


def test_one_text_and_its_logits(sorting_deployment):
    body = classify(sorting_deployment, input="a b", use_activation=False)
    np.testing.assert_allclose(body["data"][0]["probs"], logits(["a b"])[0], atol=1e-6)


def test_a_reranker_has_one_label(deployment):
    (entry,) = classify(deployment, model="ranker", input="a b")["data"]
    assert entry == {"index": 0, "label": "relevant", "probs": [2.0], "num_classes": 1}


def test_a_salt_parts_cached_prefixes(sorting_deployment):
    """A causal model classifies with the prefix cache."""
    for fields in ({}, {"cache_salt": "mine"}, {"cache_salt": "other"}):
        classify(sorting_deployment, input="a b", **fields)
    salts = [job.cache_salt for job in sorting_deployment.engines["sorter"].received]
    assert len(set(salts)) == 3


@pytest.mark.parametrize(("asked", "limit"), [(None, None), (-1, 2048), (7, 7)])
def test_texts_are_cut_if_asked_for(sorting_deployment, asked, limit):
    classify(sorting_deployment, input=[[5, 6]], truncate_prompt_tokens=asked, priority=-1)
    (job,) = sorting_deployment.engines["sorter"].received
    assert job.tokenization == Tokenization(truncate_to=limit)
    assert (job.priority, job.query, len(job.ids)) == (-1, None, 1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a", 3]}, "input[1]"),
        ({"input": [[1], [10**6]]}, "input[1][0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"messages": []}, "messages"),
        ({"model": "vectors"}, "model"),
    ],
)
def test_bad_input(sorting_deployment, fields, param):
    response = sorting_deployment.post("/v1/classify", {"input": "a", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_classifier_of_several_labels_does_not_rerank(sorting_deployment):
    body = {"model": "sorter", "query": "a", "documents": ["b"]}
    response = sorting_deployment.post("/v1/rerank", body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "wrong_endpoint"


def test_the_engines_complaint_is_told_in_the_requests_words(sorting_deployment):
    sorting_deployment.engines["sorter"].script.refusal = Failed(
        0, "context_length_exceeded", "documents[1] has 9 tokens", "documents[1]"
    )
    response = sorting_deployment.post("/v1/classify", {"input": ["a", "b"]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["message"]) == ("input[1]", "input[1] has 9 tokens")
