"""`normalize` by its three names, and `use_activation` of scores: results before the last step."""

from typing import Any

import numpy as np
import pytest

from tests.server.conftest import Deployment
from tests.server.fake_engine import LENGTH, score_of, vector_of

NAMES = ("normalize", "use_activation", "normalized")
UNIT = vector_of("a", 8)
QUERY, TEXTS = "the water falls", ["the gate", "the water", "falls"]
PATH = "/v1/embeddings"


def embed(encoders: Deployment, model: str = "any-size", **fields: Any) -> np.ndarray:
    return np.array(encoders.ask(PATH, model=model, input="a", **fields)["data"][0]["embedding"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("model", "default"), [("any-size", True), ("long", False)])
def test_vectors_before_and_after_normalisation(encoders, name, model, default):
    for asked in (None, True, False):
        length = 1 if (default if asked is None else asked) else LENGTH
        np.testing.assert_allclose(
            embed(encoders, model, **{name: asked}), length * UNIT, atol=1e-6
        )


def test_a_short_vector_that_is_not_normalised_is_a_part_of_the_long_one(encoders):
    short = embed(encoders, dimensions=3, normalize=False)
    assert short.tolist() == embed(encoders, normalize=False)[:3].tolist()
    short = embed(encoders, dimensions=3, normalize=True)
    np.testing.assert_allclose(short, UNIT[:3] / np.linalg.norm(UNIT[:3]), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "fields", [{"embed_dtype": "int8"}, {"embed_dtype": "binary"}, {"output_dtype": "ubinary"}]
)
def test_directions_have_no_other_length(encoders, name, fields):
    refused = encoders.refusal(PATH, model="long", input="a", **fields, **{name: False})
    assert refused["param"] == name
    plain, unit = (
        embed(encoders, "long", **fields, **asked).tolist() for asked in ({}, {name: True})
    )
    assert plain == unit


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("other", NAMES[1:])
def test_two_names_that_disagree(encoders, normalize, other):
    body = {"model": "any-size", "input": "a", "normalize": normalize}
    assert encoders.ask(PATH, **body, **{other: normalize})
    assert encoders.refusal(PATH, **body, **{other: not normalize})["param"] == other


def relevances(encoders: Deployment, path: str, **fields: Any) -> list[float]:
    """One score for each of TEXTS, in order."""
    if path == "/v1/score":
        body = encoders.ask(path, model="judge", text_1=QUERY, text_2=TEXTS, **fields)
        return [entry["score"] for entry in body["data"]]
    body = encoders.ask(path, model="judge", query=QUERY, documents=TEXTS, **fields)
    ranked = {entry["index"]: entry["relevance_score"] for entry in body["results"]}
    assert [entry["relevance_score"] for entry in body["data"]] == list(ranked.values())
    assert sorted(ranked.values(), reverse=True) == list(ranked.values())
    return [ranked[index] for index in range(len(TEXTS))]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/score"])
def test_raw_scores_and_probabilities(encoders, path):
    logits = np.array([score_of(QUERY, text) for text in TEXTS])
    for asked, expected in ((False, logits), (True, 1 / (1 + np.exp(-logits)))):
        scores = relevances(encoders, path, use_activation=asked)
        np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert relevances(encoders, path) == relevances(encoders, path, use_activation=True)
