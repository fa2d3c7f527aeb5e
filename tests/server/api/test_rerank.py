import numpy as np
import pytest

from engine_core.messages import Tokenization
from tests.server.fake_engine import score_of, vector_of

DOCUMENTS = ["red apples", "red wine and cheese", "nothing", "red apples", "wine"]
QUERY = "red wine"


def rerank(deployment, **fields) -> dict:
    return deployment.ask("/v1/rerank", **{"query": QUERY, "documents": DOCUMENTS} | fields)


def test_a_reranker_scores_pairs(deployment):
    body = rerank(deployment, model="ranker")
    assert body.pop("id").startswith("rerank-")
    job = deployment.job("ranker")
    assert (job.query, job.texts) == (QUERY, [*dict.fromkeys(DOCUMENTS)])
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
    query = vector_of(QUERY, 8)
    expected = np.array([vector_of(text, 8) @ query for text in DOCUMENTS])
    results = rerank(deployment, model="embedder")["results"]
    best = np.argsort(-expected, kind="stable")
    assert [result["index"] for result in results] == best.tolist()
    scores = [result["relevance_score"] for result in results]
    np.testing.assert_allclose(scores, expected[best], atol=1e-6)


@pytest.mark.parametrize("top_n", [1, 3, 5, 100, None])
def test_top_n_keeps_the_best(deployment, top_n):
    whole = rerank(deployment, model="ranker")["results"]
    assert rerank(deployment, model="ranker", top_n=top_n)["results"] == whole[:top_n]


def test_top_k_is_top_n(deployment):
    whole = rerank(deployment, model="ranker")["results"]
    assert rerank(deployment, model="ranker", top_k=2)["results"] == whole[:2]
    assert rerank(deployment, model="ranker", top_k=2, top_n=None)["results"] == whole[:2]
    assert rerank(deployment, model="ranker", top_k=2, top_n=2)["data"] == whole[:2]


@pytest.mark.parametrize("fields", [{}, {"truncation": True}])
def test_a_reranker_cuts_documents_beside_the_whole_query(deployment, tokenizer, fields):
    rerank(deployment, model="ranker", max_tokens_per_doc=5, priority=3, **fields)
    job = deployment.job("ranker")
    assert job.priority == 3
    others = len(tokenizer.raw.encode(QUERY, "").ids)
    assert job.tokenization == Tokenization(truncate_to=others + 5)


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
    assert (documents.texts, documents.tokenization.truncate_to) == ([*dict.fromkeys(DOCUMENTS)], 2)


def test_documents_as_objects_are_returned_if_asked_for(deployment):
    documents = ["wine", {"text": "red wine", "title": "ignored"}]
    body = rerank(deployment, model="ranker", documents=documents, return_documents=True)
    assert [r["document"] for r in body["results"]] == [{"text": "red wine"}, {"text": "wine"}]
    assert [r["document"] for r in body["data"]] == ["red wine", "wine"]


def test_the_model_must_be_named_where_several_could_be_meant(deployment):
    error = deployment.refusal("/v1/rerank", query="a", documents=["b"])
    assert (error["param"], error["code"]) == ("model", "model_required")
    assert "embedder, ranker" in error["message"]
