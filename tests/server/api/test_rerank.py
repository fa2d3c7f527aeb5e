import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine_core.messages import Failed, Tokenization
from server.api.embeddings import cosine_similarity
from tests.server.fake_engine import score_of, vector_of

DOCUMENTS = ["red apples", "red wine and cheese", "nothing", "red apples", "wine"]
QUERY = "red wine"


def rerank(deployment, **fields) -> dict:
    response = deployment.post("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_reranker_scores_pairs(deployment):
    body = rerank(deployment, model="ranker")
    assert body.pop("id").startswith("rerank-")
    (job,) = deployment.engines["ranker"].received
    assert (job.query, job.texts) == (QUERY, DOCUMENTS)
    scores = [score_of(QUERY, text) for text in DOCUMENTS]
    results = [{"index": index, "relevance_score": scores[index]} for index in (1, 0, 3, 4, 2)]
    tokens = body["usage"]["prompt_tokens"]
    assert tokens == body["usage"]["total_tokens"] > len(DOCUMENTS)
    assert body == {
        "object": "list",
        "model": "ranker",
        "results": results,
        "data": results,
        "meta": {
            "api_version": {"version": "1"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": tokens},
        },
        "usage": body["usage"],
    }


@pytest.mark.parametrize(("path", "version"), [("/v2/rerank", "2"), ("/rerank", "1")])
def test_other_paths_answer_alike(deployment, path, version):
    body = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    other = deployment.post(path, body).json()
    assert other["results"] == rerank(deployment, model="ranker")["results"]
    assert other["meta"]["api_version"] == {"version": version}


def test_an_embedder_scores_by_cosine(deployment):
    body = rerank(deployment, model="embedder")
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
def test_top_n_keeps_the_best(deployment, top_n):
    whole = rerank(deployment, model="ranker")["results"]
    assert rerank(deployment, model="ranker", top_n=top_n)["results"] == whole[:top_n]


def test_top_k_is_top_n(deployment):
    whole = rerank(deployment, model="ranker")["results"]
    assert rerank(deployment, model="ranker", top_k=2)["results"] == whole[:2]
    assert rerank(deployment, model="ranker", top_k=2, top_n=None)["results"] == whole[:2]
    assert rerank(deployment, model="ranker", top_k=2, top_n=2)["data"] == whole[:2]


def test_the_priority_is_passed_on(deployment):
    rerank(deployment, model="ranker", priority=3)
    (job,) = deployment.engines["ranker"].received
    assert job.priority == 3


@pytest.mark.parametrize(
    ("fields", "text_tokens"),
    [({"max_tokens_per_doc": 5}, 5), ({"max_tokens_per_doc": 5, "truncation": True}, 5)],
)
def test_a_reranker_cuts_documents_beside_the_whole_query(
    deployment, tokenizer, fields, text_tokens
):
    rerank(deployment, model="ranker", **fields)
    (job,) = deployment.engines["ranker"].received
    others = len(tokenizer.raw.encode(QUERY, "").ids)
    assert job.tokenization == Tokenization(truncate_to=others + text_tokens)


@pytest.mark.parametrize("limit", [{}, {"max_tokens_per_doc": 0}])
def test_truncation_cuts_to_the_models_length(deployment, limit):
    rerank(deployment, model="ranker", truncation=True, **limit)
    rerank(deployment, model="ranker", truncation=False, **limit)
    cut, whole = deployment.engines["ranker"].received
    assert cut.tokenization == Tokenization(truncate_to=2048)
    assert whole.tokenization == Tokenization()


def test_an_embedder_cuts_documents_and_not_the_query(deployment):
    rerank(deployment, model="embedder", max_tokens_per_doc=1)
    query, documents = deployment.engines["embedder"].received
    assert (query.texts, query.tokenization) == ([QUERY], Tokenization())
    assert (documents.texts, documents.tokenization.truncate_to) == (DOCUMENTS, 2)


def test_a_query_that_leaves_no_room_is_refused(deployment):
    body = {"model": "ranker", "query": "x " * 3000, "documents": ["a"], "truncation": True}
    response = deployment.post("/v1/rerank", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "query")


def test_errors_have_a_detail(deployment):
    body = deployment.post("/v1/rerank", {"model": "ranker", "query": "a", "documents": []}).json()
    assert body["detail"] == body["error"]["message"]


def test_documents_as_objects_are_returned_if_asked_for(deployment):
    documents = ["wine", {"text": "red wine", "title": "ignored"}]
    body = rerank(deployment, model="ranker", documents=documents, return_documents=True)
    assert [r["document"] for r in body["results"]] == [{"text": "red wine"}, {"text": "wine"}]
    assert [r["document"] for r in body["data"]] == ["red wine", "wine"]


def test_the_model_must_be_named_where_several_could_be_meant(deployment):
    response = deployment.post("/v1/rerank", {"query": "a", "documents": ["b"]})
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
        ({"top_k": 0}, "top_k"),
        ({"top_n": 1, "top_k": 2}, "top_k"),
        ({"top_n": 2**63}, "top_n"),
        ({"top_n": 1.0}, "top_n"),
        ({"query": None}, "query"),
        ({"max_tokens_per_doc": -1}, "max_tokens_per_doc"),
        ({"truncation": 1}, "truncation"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"max_chunks_per_doc": 5}, "max_chunks_per_doc"),
        ({"instruction": "be kind"}, "instruction"),
    ],
)
def test_bad_input(deployment, fields, param):
    body = {"model": "ranker", "query": "a", "documents": ["b"], **fields}
    response = deployment.post("/v1/rerank", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("engine_param", "param"),
    [("input[0]", "query"), ("input[2]", "documents[1]"), ("other", "other"), (None, None)],
)
def test_the_embedders_complaint_is_told_in_the_requests_words(deployment, engine_param, param):
    deployment.engines["embedder"].script.refusal = Failed(
        0, "context_length_exceeded", "too long", engine_param
    )
    response = deployment.post(
        "/v1/rerank", {"model": "embedder", "query": "a", "documents": ["b", "c"]}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_an_overlong_document_is_named_with_its_index(deployment):
    deployment.engines["ranker"].script.refusal = Failed(
        0, "context_length_exceeded", "documents has 9 tokens; at most 8", "documents"
    )
    response = deployment.post("/v1/rerank", {"model": "ranker", "query": "a", "documents": ["b"]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "documents[0]"
    assert error["message"] == "documents[0] has 9 tokens; at most 8"


@given(vectors=hnp.arrays(np.float32, (4, 5), elements=st.floats(-(2.0**20), 2.0**20, width=32)))
def test_cosine_similarity_stays_in_its_range(vectors):
    scores = cosine_similarity(vectors[:1], vectors[1:])
    assert scores.dtype == np.float32
    assert np.all(np.abs(scores) <= 1)
    assert np.all(np.isfinite(scores))


def test_cosine_similarity_of_what_is_equal_opposite_square_and_nothing():
    others = np.array([[2, 0], [-3, 0], [0, 1], [0, 0]], np.float32)
    scores = cosine_similarity(np.array([[5, 0]], np.float32), others)
    assert scores.tolist() == [1, -1, 0, 0]
