import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine_core.messages import Failed
from server.api.rerank import cosine_similarity
from tests.server.fake_engine import score_of, vector_of

DOCUMENTS = ["red apples", "red wine and cheese", "nothing", "red apples", "wine"]
QUERY = "red wine"


def rerank(house, **fields) -> dict:
    response = house.post("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_reranker_scores_pairs(house):
    body = rerank(house, model="ranker")
    assert body.pop("id").startswith("rerank-")
    (job,) = house.engines["ranker"].received
    assert (job.query, job.texts) == (QUERY, DOCUMENTS)
    scores = [score_of(QUERY, text) for text in DOCUMENTS]
    assert body == {
        "model": "ranker",
        "results": [
            {"index": index, "relevance_score": scores[index]} for index in (1, 0, 3, 4, 2)
        ],
        "usage": body["usage"],
    }
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > len(DOCUMENTS)


def test_an_embedder_scores_by_cosine(house):
    body = rerank(house, model="embedder")
    query = vector_of(QUERY, 8)
    expected = [float(vector_of(text, 8) @ query) for text in DOCUMENTS]
    results = body["results"]
    assert [r["relevance_score"] for r in results] == pytest.approx(
        [expected[r["index"]] for r in results], abs=1e-6
    )
    assert sorted((-expected[r["index"]], r["index"]) for r in results) == [
        (-expected[r["index"]], r["index"]) for r in results
    ]


@pytest.mark.parametrize("top_n", [1, 3, 5, 100, None])
def test_top_n_keeps_the_best(house, top_n):
    whole = rerank(house, model="ranker")["results"]
    assert rerank(house, model="ranker", top_n=top_n)["results"] == whole[:top_n]


def test_documents_as_objects_are_returned_if_asked_for(house):
    documents = ["wine", {"text": "red wine", "title": "ignored"}]
    body = rerank(house, model="ranker", documents=documents, return_documents=True)
    assert [r["document"] for r in body["results"]] == [{"text": "red wine"}, {"text": "wine"}]


def test_the_model_must_be_named_where_several_could_be_meant(house):
    response = house.post("/v1/rerank", {"query": "a", "documents": ["b"]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_required")
    assert "embedder, ranker" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": ["a"] * 1001}, "documents"),
        ({"documents": ["a", 3]}, "documents[1]"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1].text"),
        ({"documents": "a"}, "documents"),
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": -1}, "top_n"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc"),
    ],
)
def test_bad_input(house, fields, param):
    body = {"model": "ranker", "query": "a", "documents": ["b"], **fields}
    response = house.post("/v1/rerank", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("engine_param", "param"),
    [("input[0]", "query"), ("input[2]", "documents[1]"), (None, None)],
)
def test_the_embedders_complaint_is_told_in_the_requests_words(house, engine_param, param):
    house.engines["embedder"].script.refusal = Failed(
        0, "context_length_exceeded", "too long", engine_param
    )
    response = house.post(
        "/v1/rerank", {"model": "embedder", "query": "a", "documents": ["b", "c"]}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@given(vectors=hnp.arrays(np.float32, (4, 5), elements=st.floats(-(2.0**20), 2.0**20, width=32)))
def test_cosine_similarity_stays_in_its_range(vectors):
    scores = cosine_similarity(vectors[0], vectors[1:])
    assert scores.dtype == np.float32
    assert np.all(np.abs(scores) <= 1)
    assert np.all(np.isfinite(scores))


def test_cosine_similarity_of_what_is_equal_opposite_square_and_nothing():
    others = np.array([[2, 0], [-3, 0], [0, 1], [0, 0]], np.float32)
    scores = cosine_similarity(np.array([5, 0], np.float32), others)
    assert scores.tolist() == [1, -1, 0, 0]
