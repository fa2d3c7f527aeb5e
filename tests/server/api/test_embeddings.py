import base64

import numpy as np
import pytest

from tests.server.fake_engine import vector_of


def embed(deployment, **fields) -> dict:
    return deployment.ask("/v1/embeddings", **fields)


def test_the_shape(deployment):
    body = embed(deployment, model="embedder", input="Hello", user="somebody")
    vector = body["data"][0].pop("embedding")
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0}],
        "model": "embedder",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    np.testing.assert_allclose(vector, vector_of("Hello", 8), atol=1e-6)


@pytest.mark.parametrize("value", ["a b", ["a b", "c", "a b"], [7, 8, 9], [[7, 8], [9], [7]]])
def test_every_form_of_input(deployment, tokenizer, value):
    body = embed(deployment, input=value)
    job = deployment.job("embedder")
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    expected = [vector_of(item, 8) for item in job.texts or job.ids]
    vectors = [entry["embedding"] for entry in body["data"]]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    ids = job.ids or tokenizer.encode(job.texts)
    assert body["usage"]["prompt_tokens"] == sum(len(tokens) // 4 for tokens in ids)


def test_base64_holds_the_same_float32(deployment):
    texts = [f"text {number}" for number in range(130)]  # more than are written at once
    plain = embed(deployment, input=texts)["data"]
    coded = embed(deployment, input=texts, encoding_format="base64")["data"]
    decoded = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in coded]
    assert np.array_equal(decoded, np.array([entry["embedding"] for entry in plain], np.float32))
