"""Which model TEI's endpoints take, with a name and without one; and `/info`."""

from tests.server.api.conftest import LABELS
from tests.server.api.tei.tei_client import BODIES, failure
from tests.server.support import server_config


def test_an_address_alone_is_the_models_own_endpoint(tei_deployment, splade_deployment, builder):
    found = splade_deployment.ask("/", inputs="a")
    assert found == splade_deployment.ask("/embed_sparse", inputs="a")
    assert tei_deployment.ask("/", inputs="a") == tei_deployment.ask("/embed", inputs="a")
    deployment = builder.open(server_config(builder.model("sorter-alone", "classify", LABELS)))
    assert deployment.ask("/", inputs="a") == deployment.ask("/predict", inputs="a")
    kind = deployment.http.get("/info").json()["model_type"]
    assert kind["classifier"]["id2label"] == dict(zip("012", LABELS, strict=True))


def test_of_several_models_that_fit_a_request_names_one(builder):
    models = [builder.model(name, "embed") for name in ("one", "two")]
    models += [builder.model(name, "classify", LABELS) for name in ("three", "four")]
    models += [builder.model(name, "classify") for name in ("five", "six")]
    models += [builder.model(name, "embed_sparse") for name in ("seven", "eight")]
    deployment = builder.open(server_config(*models))
    for path, names in (
        ("/embed", "one, two"),
        ("/embed_sparse", "seven, eight"),
        ("/predict", "three, four, five, six"),
        ("/rerank", "five, six"),
    ):
        status, kind, message = failure(deployment, path, BODIES[path])
        assert (status, kind) == (424, "Backend")
        assert names in message
    assert deployment.http.get("/info").status_code == 424
    for model, own, *others in (
        ("two", "/embed", "/embed_all", "/similarity"),
        ("four", "/predict"),
        ("six", "/rerank"),
        ("eight", "/embed_sparse"),
    ):
        for path in (own, *others, "/"):
            deployment.reset()
            deployment.ask(path, **BODIES.get(path, BODIES[own]), model=model)
            asked = [name for name, engine in deployment.engines.items() if engine.received]
            assert asked == [model], path


def test_a_name_that_does_not_fit(tei_deployment):
    for path, model, status in (
        ("/embed", "sorter", 424),
        ("/predict", "vectors", 424),
        ("/embed", "nobody", 422),
        ("/", "nobody", 422),
        ("/rerank", "sorter", 424),
    ):
        body = BODIES.get(path, BODIES["/embed"])
        found, _, message = failure(tei_deployment, path, {**body, "model": model})
        assert found == status
        assert model in message


def test_a_generator_alone_has_only_a_tokenizer(builder, tei_deployment):
    deployment = builder.open(server_config(builder.model("writer-alone", "generate")))
    for path, asked in (("/tokenize", {"inputs": "naïve 漢"}), ("/decode", {"ids": [5]})):
        assert deployment.ask(path, **asked) == tei_deployment.ask(path, **asked)
    for path, body in BODIES.items():
        assert failure(deployment, path, body)[:2] == (424, "Backend")


def test_info_tells_of_the_embedder(tei_deployment, splade_deployment):
    info = splade_deployment.http.get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "splade"}}
    info = tei_deployment.http.get("/info").json()
    assert info["model_id"] == info["served_model_name"] == "vectors"
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
