"""`/embed_sparse`, and all else that a SPLADE model serves or refuses."""

import pytest

from engine_core.messages import Failed
from tests.server.api.tei.tei_client import assert_cut_then_whole, failure
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
    assert not job.token_states


@pytest.mark.parametrize(
    ("direction", "side"), [(None, "right"), ("right", "right"), ("left", "left"), ("Left", "left")]
)
def test_embed_sparse_truncates_if_asked_to(splade_deployment, direction, side):
    splade_deployment.ask(
        "/embed_sparse",
        inputs="a",
        truncate=True,
        truncation_direction=direction,
    )
    splade_deployment.ask("/embed_sparse", inputs="a", truncate=None, prompt_name=None)
    assert_cut_then_whole(splade_deployment.engines["splade"], side)


def test_a_text_that_is_too_long_for_a_splade_model(splade_deployment):
    message = "input[1] has 9 tokens"
    script = splade_deployment.engines["splade"].script
    script.refusal = Failed(0, "context_length_exceeded", message, "input[1]")
    found = failure(splade_deployment, "/embed_sparse", {"inputs": ["a", "b"]})
    assert found == (413, "Validation", "inputs[1] has 9 tokens")


def test_an_answer_with_too_many_numbers(splade_deployment):
    inputs = ["everything"] * 70
    status, kind, message = failure(splade_deployment, "/embed_sparse", {"inputs": inputs})
    assert (status, kind) == (413, "Validation")
    assert "more than 2097152 entries" in message
    assert len(splade_deployment.ask("/embed_sparse", inputs=inputs[:3])[2]) == 30_000


def test_what_a_splade_model_does_not_serve(splade_deployment):
    for path, body in (
        ("/embed", {"inputs": "a"}),
        ("/embed_all", {"inputs": "a"}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ):
        found = failure(splade_deployment, path, body)
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


def test_a_splade_model_tokenizes(splade_deployment):
    assert splade_deployment.ask("/tokenize", model="splade", prompt="a b")["count"] == 3


def test_an_address_alone_is_a_splade_models_endpoint(splade_deployment):
    found = splade_deployment.ask("/", inputs="a")
    assert found == splade_deployment.ask("/embed_sparse", inputs="a")


def test_info_tells_of_a_splade_model(splade_deployment):
    info = splade_deployment.http.get("/info").json()
    assert info["model_id"] == "splade"
    assert info["model_type"] == {"embedding": {"pooling": "splade"}}
    assert info["max_client_batch_size"] == 2048


def test_an_embedder_goes_before_a_splade_model(builder):
    models = [builder.model("sparse-one", "embed_sparse"), builder.model("dense", "embed")]
    deployment = builder.open(server_config(*models))
    assert deployment.http.get("/info").json()["model_id"] == "dense"
    assert deployment.ask("/", inputs="a") == deployment.ask("/embed", inputs="a")
    assert deployment.ask("/embed_sparse", inputs="a")[0][0]["index"] % 1000 == 0
