"""A text twice in a request is computed once; one that comes again may be cached, for its key."""

import secrets
from typing import Any

import numpy as np
import pytest

from engine_core.messages import Failed
from server.service.vector_cache import KnownVector, VectorCache
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.fake_engine import score_of, vector_of
from tests.server.support import api_keys, server_config

TEXTS = ["a b", "c", "a b", "d", "c", "a b"]
ENTRY = 8 * 4 + 400
"""Bytes of a vector of 8 numbers in the cache."""


def vectors(answer: Any) -> list[Any]:
    return [entry["embedding"] for entry in answer["data"]]


def test_each_text_is_computed_once(deployment: Deployment) -> None:
    answer = deployment.ask("/v1/embeddings", input=TEXTS)
    assert deployment.job("embedder").texts == ["a b", "c", "d"]
    np.testing.assert_allclose(vectors(answer), [vector_of(text, 8) for text in TEXTS], atol=1e-6)
    apart = [deployment.ask("/v1/embeddings", input=text)["usage"] for text in TEXTS]
    assert answer["usage"]["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in apart)


def test_each_pair_is_scored_once(deployment: Deployment) -> None:
    queries, texts = ["a", "b", "a", "a"], ["a c", "a c", "a c", "b"]
    answer = deployment.ask("/v1/score", model="ranker", text_1=queries, text_2=texts)
    job = deployment.job("ranker")
    assert (job.query, job.texts) == (["a", "b", "a"], ["a c", "a c", "b"])
    scores = [entry["score"] for entry in answer["data"]]
    assert scores == [scores[0], scores[1], scores[0], scores[3]]
    assert score_of("a", "a c") > score_of("b", "a c")


def test_the_first_text_at_fault_is_named_by_its_own_place(deployment: Deployment) -> None:
    text = "input[1] has 3000 tokens; this model takes at most 2048"
    refusal = Failed(0, "context_length_exceeded", text, "input[1]")
    deployment.engines["embedder"].script.refusal = refusal
    error = deployment.refusal("/v1/embeddings", input=["a", "a", "a", "b"])
    assert error["param"] == "input[3]"
    assert error["message"] == text.replace("[1]", "[3]")


@pytest.fixture(scope="module")
def open_caching(module_builder: DeploymentBuilder) -> Deployment:
    """Two keys, and room for ten vectors."""
    models = module_builder.models()[1:]
    config = server_config(*models, api_keys=api_keys("one", "two"), vector_cache_size=10 * ENTRY)
    return module_builder.open(config)


class Caching:
    """Requests of either key, and what the engine has computed since the last one."""

    def __init__(self, deployment: Deployment) -> None:
        deployment.reset()
        self._deployment = deployment

    def ask(self, path: str, key: str = "one", **fields: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        response = self._deployment.http.post(path, json=fields, headers=headers)
        assert response.status_code == 200, response.text
        return response.json()

    def computed(self) -> list[str]:
        engines = self._deployment.engines.values()
        texts = [text for engine in engines for job in engine.received for text in job.texts]
        for engine in engines:
            engine.received.clear()
        return texts

    def counted(self) -> dict[str, float]:
        headers = {"Authorization": "Bearer one"}
        page = self._deployment.http.get("/metrics", headers=headers).text
        lines = [line.split() for line in page.splitlines() if "penstock_vector_cache" in line]
        return {name: float(value) for name, value in (own for own in lines if len(own) == 2)}


@pytest.fixture
def caching(open_caching: Deployment) -> Caching:
    return Caching(open_caching)


def words(count: int) -> list[str]:
    """Texts that no other test has."""
    return [secrets.token_hex(8) for _ in range(count)]


def test_a_text_that_comes_again_is_not_computed(caching: Caching) -> None:
    old, new = words(2), words(1)
    first = caching.ask("/v1/embeddings", input=old)
    assert caching.computed() == old
    assert caching.ask("/v1/embeddings", input=old) == first
    assert caching.computed() == []
    both = caching.ask("/v1/embeddings", input=[old[1], *new, old[0]])
    assert caching.computed() == new
    expected = [vector_of(text, 8) for text in (old[1], *new, old[0])]
    np.testing.assert_allclose(vectors(both), expected, atol=1e-6)


@pytest.mark.parametrize(
    "other", [{"key": "two"}, {"cache_salt": "s"}, {"truncate_prompt_tokens": 9}]
)
def test_nothing_is_learnt_by_another_key_salt_or_truncation(caching: Caching, other: Any) -> None:
    texts = words(2)
    caching.ask("/v1/embeddings", input=texts)
    caching.computed()
    caching.ask("/v1/embeddings", input=texts, **other)
    assert caching.computed() == texts


def test_scores_are_those_of_a_query(caching: Caching) -> None:
    query, *texts = words(4)
    first = caching.ask("/v1/rerank", model="ranker", query=query, documents=texts)
    assert caching.computed() == texts
    again = caching.ask("/v1/rerank", model="ranker", query=query, documents=texts)
    assert again["results"] == first["results"]
    assert caching.computed() == []
    caching.ask("/v1/rerank", model="ranker", query=query[::-1], documents=texts)
    assert caching.computed() == texts


def test_what_is_found_and_held_is_counted(caching: Caching) -> None:
    name = 'penstock_vector_cache_{}_total{{model="embedder"}}'.format
    before, texts = caching.counted(), words(12)
    for _ in range(2):
        caching.ask("/v1/embeddings", input=texts[-3:])
    caching.ask("/v1/embeddings", input=texts)
    caching.ask("/v1/embeddings", input=texts[-3:-2])
    after = caching.counted()
    assert after[name("queries")] - before[name("queries")] == 3 + 3 + 12 + 1
    assert after[name("hits")] - before[name("hits")] == 3 + 3
    assert 0 < after["penstock_vector_cache_bytes"] <= 10 * ENTRY


def test_the_least_recently_used_go_first() -> None:
    cache, known = VectorCache(3 * ENTRY), KnownVector(bytes(32), 5, 0)
    for key in ("a", "b", "c"):
        cache.put(key, known)
    assert cache.get("a") is known
    cache.put("d", known)
    assert [cache.get(key) is not None for key in "abcd"] == [True, False, True, True]
    cache.put("large", KnownVector(bytes(4 * ENTRY), 5, 0))
    assert (cache.num_bytes, cache.get("large"), cache.get("d")) == (0, None, None)
