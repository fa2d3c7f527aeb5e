import numpy as np
import pytest

from engine_core.messages import Tokenization
from tests.server.fake_engine import score_of, vector_of

FIRST, SECOND = "red wine", ["red apples", "red wine and cheese", "nothing"]


def score(deployment, **fields) -> dict:
    return deployment.ask("/v1/score", **fields)


def scores_of(body: dict) -> list[float]:
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    assert {entry["object"] for entry in body["data"]} == {"score"}
    return [entry["score"] for entry in body["data"]]


def test_one_text_is_scored_against_many(deployment):
    body = score(deployment, model="ranker", text_1=FIRST, text_2=SECOND)
    assert scores_of(body) == [score_of(FIRST, text) for text in SECOND]
    assert body["id"].startswith("score-")
    assert (body["object"], body["model"]) == ("list", "ranker")
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 3
    job = deployment.job("ranker")
    assert (job.query, job.texts) == (FIRST, SECOND)
    other = deployment.ask("/score", model="ranker", text_1=FIRST, text_2=SECOND)
    assert other["data"] == body["data"]


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_as_many_texts_are_scored_pair_by_pair(deployment, names):
    firsts = ["red", "red wine", "wine cheese"]
    body = score(deployment, model="ranker", **dict(zip(names, (firsts, SECOND), strict=True)))
    pairs = zip(firsts, SECOND, strict=True)
    assert scores_of(body) == [score_of(*pair) for pair in pairs]
    job = deployment.job("ranker")
    assert (job.query, job.texts) == (firsts, SECOND)


@pytest.mark.parametrize("firsts", ["red wine", ["red wine"], ["a", "b", "c"]])
def test_an_embedder_scores_by_cosine(deployment, firsts):
    body = score(deployment, model="embedder", text_1=firsts, text_2=SECOND)
    queries = np.stack([vector_of(text, 8) for text in ([firsts] if firsts == FIRST else firsts)])
    expected = (queries * np.stack([vector_of(text, 8) for text in SECOND])).sum(axis=1)
    assert scores_of(body) == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("model", ["ranker", "embedder"])
@pytest.mark.parametrize(("asked", "limit"), [(None, None), (-1, 2048), (7, 7)])
def test_texts_are_cut_if_asked_for(deployment, model, asked, limit):
    score(deployment, model=model, text_1="a", text_2="b", truncate_prompt_tokens=asked, priority=2)
    job = deployment.job(model)
    assert job.tokenization == Tokenization(truncate_to=limit)
    assert job.priority == 2
