"""`/embed_sparse`, and all else that a SPLADE model serves or refuses."""

import pytest

from tests.server.api.tei.tei_client import BODIES, failure
from tests.server.fake_engine import sparse_of
from tests.server.support import server_config


@pytest.mark.parametrize("inputs", ["a", ["a"], ["a", "nothing", "b"], ["nothing"], [[5, 6], [7]]])
def test_embed_sparse_tells_what_is_not_zero(splade_deployment, inputs):
    found = splade_deployment.ask("/embed_sparse", inputs=inputs)
    job = splade_deployment.job("splade")
    expected = [
        [{"index": int(index), "value": value} for index, value in sparse_of(item).tolist()]
        for item in job.texts or job.ids
    ]
    assert found == expected
    assert job.outputs == ("vector",)


def test_an_answer_with_too_many_numbers(splade_deployment):
    inputs = ["everything"] * 70
    status, kind, message = failure(splade_deployment, "/embed_sparse", {"inputs": inputs})
    assert (status, kind) == (413, "Validation")
    assert "more than 4194304 numbers" in message
    assert len(splade_deployment.ask("/embed_sparse", inputs=inputs[:3])[2]) == 30_000


def test_what_a_splade_model_does_not_serve(splade_deployment):
    for path in ("/embed", "/embed_all", "/similarity"):
        found = failure(splade_deployment, path, BODIES[path])
        assert found == (424, "Backend", f"no model of this daemon serves {path}")
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/classify", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        response = splade_deployment.post(path, {"model": "splade"} | body)
        error = response.json()["error"]
        assert response.status_code == 400
        assert (error["code"], error["param"]) == ("wrong_endpoint", "model")
        assert "model splade serves /embed_sparse, /tokenize, /detokenize" in error["message"]


def test_an_embedder_goes_before_a_splade_model(builder):
    models = [builder.model("sparse-one", "embed_sparse"), builder.model("dense", "embed")]
    deployment = builder.open(server_config(*models))
    assert deployment.http.get("/info").json()["model_id"] == "dense"
    assert deployment.ask("/", inputs="a") == deployment.ask("/embed", inputs="a")
    assert deployment.ask("/embed_sparse", inputs="a")[0][0]["index"] % 1000 == 0
