"""`/predict` and TEI's `/rerank`."""

import numpy as np
import pytest

from engine_core.messages import Failed, Tokenization
from tests.server.api.conftest import LABELS
from tests.server.api.tei.tei_client import expit, failure
from tests.server.fake_engine import logits_of, score_of, vector_of


def predictions(query: str | None, text: str, *, raw: bool) -> list[tuple[str, float]]:
    logits = logits_of(query, text, len(LABELS))
    scores = logits if raw else np.exp(logits) / np.exp(logits).sum()
    return sorted(zip(LABELS, scores.tolist(), strict=True), key=lambda pair: -pair[1])


def check(found: list[dict], expected: list[tuple[str, float]]) -> None:
    assert [entry["label"] for entry in found] == [label for label, _ in expected]
    scores = [score for _, score in expected]
    assert [entry["score"] for entry in found] == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    ("inputs", "pair"), [("b c", (None, "b c")), (["b c"], (None, "b c")), (["b", "c"], ("b", "c"))]
)
def test_predict_answers_labels_best_first(tei_deployment, inputs, pair, raw):
    found = tei_deployment.ask("/predict", inputs=inputs, raw_scores=raw)
    check(found, predictions(*pair, raw=raw))


def test_predict_takes_texts_and_pairs_in_one_batch(tei_deployment):
    found = tei_deployment.ask("/predict", inputs=[["a b"], ["a", "b"], ["c"], ["c b", "c"]])
    pairs = [(None, "a b"), ("a", "b"), (None, "c"), ("c b", "c")]
    assert len(found) == len(pairs)
    for entry, pair in zip(found, pairs, strict=True):
        check(entry, predictions(*pair, raw=False))


def test_predict_names_the_item_that_is_too_long(tei_deployment):
    script = tei_deployment.engines["sorter"].script
    script.refusal = Failed(0, "context_length_exceeded", "documents has 9 tokens", "documents")
    found = failure(tei_deployment, "/predict", {"inputs": [["a", "b"]]})
    assert found == (413, "Validation", "inputs[0] has 9 tokens")


def test_a_rerankers_prediction_is_a_probability(deployment):
    (found,) = deployment.ask("/predict", inputs=["a b", "b"])
    assert found == {"label": "relevant", "score": pytest.approx(expit(0.5))}


def test_rerank_with_texts_is_teis(deployment):
    texts = ["nothing", "red apples", "red wine"]
    found = deployment.ask("/rerank", query="red wine", texts=texts)
    scores = [expit(score_of("red wine", text)) for text in texts]
    assert found == [{"index": i, "score": pytest.approx(scores[i])} for i in (2, 1, 0)]
    found = deployment.ask("/rerank", query="red wine", texts=texts, raw_scores=True)
    assert [entry["score"] for entry in found] == [1.0, 0.5, 0.0]
    found = deployment.ask("/rerank", query="red wine", texts=texts, return_text=True)
    assert [entry["text"] for entry in found] == texts[::-1]


def test_texts_that_are_null_are_left_out(deployment):
    body = {"model": "ranker", "query": "a", "texts": None, "documents": ["a"]}
    assert deployment.ask("/rerank", **body)["results"] == [{"index": 0, "relevance_score": 1.0}]
    body = {"query": "a", "texts": ["a"], "documents": None}
    assert deployment.ask("/rerank", **body) == [{"index": 0, "score": pytest.approx(expit(1))}]


def test_rerank_truncates_texts_beside_the_whole_query(deployment):
    fields = {"truncate": True, "truncation_direction": "Left"}
    deployment.ask("/rerank", query="red wine", texts=["a"], **fields)
    job = deployment.job("ranker")
    assert job.tokenization == Tokenization(truncate_to=2048, truncation_side="left")


def test_without_a_reranker_the_embedder_ranks(tei_deployment):
    found = tei_deployment.ask("/rerank", query="a", texts=["b", "c"])
    cosines = [float(vector_of("a", 8) @ vector_of(text, 8)) for text in ("b", "c")]
    scores = {entry["index"]: entry["score"] for entry in found}
    assert [scores[0], scores[1]] == pytest.approx(cosines, abs=1e-6)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"query": "a"}',
        b'{"query": "a", "texts": null}',
        b'{"query": "a", "texts": ["b"], "documents": ["b"]}',
    ],
)
def test_any_other_body_of_rerank_gets_our_own_errors(deployment, content):
    response = deployment.http.post("/rerank", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"
