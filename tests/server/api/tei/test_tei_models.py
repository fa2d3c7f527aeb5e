"""Which model TEI's endpoints take, with a name and without one; and `/info`."""

from tests.server.api.tei.tei_client import LABELS, answer, failure
from tests.server.support import server_config


def test_an_address_alone_is_the_models_own_endpoint(tei_deployment, builder):
    assert answer(tei_deployment, "/", inputs="a") == answer(tei_deployment, "/embed", inputs="a")
    deployment = builder.open(server_config(builder.model("sorter-alone", "classify", LABELS)))
    assert answer(deployment, "/", inputs="a") == answer(deployment, "/predict", inputs="a")


def test_several_models_that_fit_are_named(builder):
    models = [builder.model(name, "embed") for name in ("one", "two")]
    models += [builder.model(name, "classify") for name in ("three", "four")]
    models += [builder.model(name, "embed_sparse") for name in ("five", "six")]
    deployment = builder.open(server_config(*models))
    for path, body, names in (
        ("/embed", {"inputs": "a"}, "one, two"),
        ("/embed_sparse", {"inputs": "a"}, "five, six"),
        ("/predict", {"inputs": "a"}, "three, four"),
        ("/rerank", {"query": "a", "texts": ["b"]}, "three, four"),
    ):
        status, kind, message = failure(deployment, path, body)
        assert (status, kind) == (424, "Backend")
        assert names in message
    assert deployment.http.get("/info").status_code == 424


def test_a_request_may_name_one_of_several(builder):
    models = [builder.model(name, "embed") for name in ("one", "two")]
    models += [builder.model(name, "classify", LABELS) for name in ("three", "four")]
    models += [builder.model(name, "classify") for name in ("five", "six")]
    models += [builder.model(name, "embed_sparse") for name in ("seven", "eight")]
    deployment = builder.open(server_config(*models))
    pair = {"source_sentence": "a", "sentences": ["b"]}
    texts = {"query": "a", "texts": ["b"]}
    for path, model, body in (
        ("/embed", "two", {"inputs": "a"}),
        ("/embed_all", "two", {"inputs": "a"}),
        ("/similarity", "two", {"inputs": pair}),
        ("/", "two", {"inputs": "a"}),
        ("/predict", "four", {"inputs": "a"}),
        ("/", "four", {"inputs": "a"}),
        ("/rerank", "six", texts),
        ("/", "six", texts),
        ("/embed_sparse", "eight", {"inputs": "a"}),
        ("/", "eight", {"inputs": "a"}),
    ):
        answer(deployment, path, **body, model=model)
        received = {name: engine.received for name, engine in deployment.engines.items()}
        assert [name for name, jobs in received.items() if jobs] == [model], path
        received[model].clear()


def test_a_name_that_does_not_fit(tei_deployment):
    for path, model, status in (
        ("/embed", "sorter", 424),
        ("/predict", "tei-vectors", 424),
        ("/embed", "nobody", 422),
        ("/", "nobody", 422),
        ("/rerank", "sorter", 424),
    ):
        body = {"query": "a", "texts": ["b"]} if path == "/rerank" else {"inputs": "a"}
        found, _, message = failure(tei_deployment, path, {**body, "model": model})
        assert found == status
        assert model in message


def test_a_generator_alone_fits_nothing(builder):
    deployment = builder.open(server_config(builder.model("writer-alone", "generate")))
    for path, body in (
        ("/embed", {"inputs": "a"}),
        ("/embed_sparse", {"inputs": "a"}),
        ("/predict", {"inputs": "a"}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ):
        assert failure(deployment, path, body)[:2] == (424, "Backend")


def test_info_tells_of_the_embedder(tei_deployment):
    info = tei_deployment.http.get("/info").json()
    assert info["model_id"] == info["served_model_name"] == "tei-vectors"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["model_dtype"], info["max_input_length"]) == ("float32", 2048)
    assert (info["max_client_batch_size"], info["max_concurrent_requests"]) == (2048, 16_384)
    assert {"model_sha", "max_batch_tokens", "version", "sha", "docker_label"} <= set(info)


def test_info_tells_of_a_reranker(builder):
    deployment = builder.open(server_config(builder.model("ranker-alone", "classify")))
    info = deployment.http.get("/info").json()
    labels = {"id2label": {"0": "relevant"}, "label2id": {"relevant": 0}}
    assert info["model_type"] == {"reranker": labels}
    assert info["max_client_batch_size"] == 1000
