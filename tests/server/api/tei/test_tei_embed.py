"""`/embed`, `/embed_all` and `/similarity`."""

import numpy as np
import pytest

from engine_core.messages import Failed, Tokenization
from tests.server.api.tei.tei_client import failure
from tests.server.fake_engine import LENGTH, states_of, vector_of


@pytest.mark.parametrize("inputs", ["a", ["a"], ["a", "b"], [5, 6], [[5, 6], [7]]])
def test_embed_answers_lists_of_numbers(tei_deployment, inputs):
    vectors = tei_deployment.ask("/embed", inputs=inputs)
    job = tei_deployment.job("vectors")
    expected = [vector_of(item, 8) for item in job.texts or job.ids]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


@pytest.mark.parametrize(("normalize", "length"), [(None, 1), (True, 1), (False, LENGTH)])
def test_embed_normalises_unless_told_not_to(tei_deployment, normalize, length):
    (vector,) = tei_deployment.ask("/embed", inputs="a", normalize=normalize)
    np.testing.assert_allclose(vector, length * vector_of("a", 8), atol=1e-6)


@pytest.mark.parametrize(
    ("served", "path", "model"),
    [("tei_deployment", "/embed", "vectors"), ("splade_deployment", "/embed_sparse", "splade")],
)
@pytest.mark.parametrize("direction", [None, "right", "Right", "left", "Left"])
def test_texts_are_cut_if_asked_to(request, served, path, model, direction):
    deployment = request.getfixturevalue(served)
    deployment.ask(path, inputs="a", truncate=True, truncation_direction=direction)
    deployment.ask(path, inputs="a", truncate=None, prompt_name=None)
    cut, whole = deployment.engines[model].received
    side = "left" if direction in ("left", "Left") else "right"
    assert cut.tokenization == Tokenization(truncate_to=2048, truncation_side=side)
    assert whole.tokenization.truncate_to is None


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("context_length_exceeded", 413, "Validation"),
        ("overloaded", 429, "Overloaded"),
        ("draining", 503, "Unhealthy"),
        ("row_failed", 424, "Backend"),
    ],
)
def test_the_engines_refusals_in_teis_words(tei_deployment, code, status, kind):
    script = tei_deployment.engines["vectors"].script
    script.refusal = Failed(0, code, "input[1] has 9 tokens", "input[1]")
    found = failure(tei_deployment, "/embed", {"inputs": ["a", "b"]})
    assert found == (status, kind, "inputs[1] has 9 tokens")


def test_a_body_that_is_no_json(tei_deployment):
    response = tei_deployment.http.post("/embed", content=b'{"inputs": ')
    assert response.status_code == 422
    assert response.json()["error_type"] == "Validation"


def test_sparse_vectors_need_a_splade_model(tei_deployment):
    found = failure(tei_deployment, "/embed_sparse", {"inputs": "a"})
    assert found == (424, "Backend", "no model of this daemon serves /embed_sparse")


def test_embed_all_tells_each_token(tei_deployment, tokenizer):
    texts = ["a", "b c d", "water falls"]
    found = tei_deployment.ask("/embed_all", inputs=texts)
    counts = [len(tokenizer.raw.encode(text).ids) for text in texts]
    assert [len(states) for states in found] == counts
    for states, text, count in zip(found, texts, counts, strict=True):
        np.testing.assert_allclose(states, states_of(text, count), atol=1e-5)
    job = tei_deployment.job("vectors")
    assert job.outputs == ("states",)


def test_similarity_is_the_cosine(tei_deployment):
    inputs = {"source_sentence": "a", "sentences": ["b", "c"]}
    parameters = {"truncate": True, "truncation_direction": "left"}
    found = tei_deployment.ask("/similarity", inputs=inputs, parameters=parameters)
    expected = [float(vector_of("a", 8) @ vector_of(text, 8)) for text in ("b", "c")]
    assert found == pytest.approx(expected, abs=1e-6)
    job = tei_deployment.job("vectors")
    assert job.tokenization == Tokenization(truncate_to=2048, truncation_side="left")
