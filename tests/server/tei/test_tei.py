"""Shapes and errors are those of huggingface/text-embeddings-inference 1.7 (router/src/http)."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest

from engine_core.messages import Failed, Tokenization
from tests.server.conftest import House, HouseBuilder
from tests.server.fake_engine import (
    LENGTH,
    FakeEngine,
    Script,
    logits_of,
    score_of,
    sparse_of,
    states_of,
    vector_of,
)
from tests.server.support import server_config

LABELS = ("good", "bad", "ugly")


@pytest.fixture(scope="module")
def open_tei_house(folder, tokenizer) -> Iterator[House]:
    houses = HouseBuilder(folder, tokenizer)
    models = [houses.model("tei-vectors", "embed"), houses.model("sorter", "classify", LABELS)]
    yield houses.open(server_config(*models))
    houses.close()


@pytest.fixture
def tei_house(open_tei_house) -> Iterator[House]:
    for engine in open_tei_house.engines.values():
        engine.script = Script()
        engine.received.clear()
    yield open_tei_house
    for engine in open_tei_house.engines.values():
        engine.script = Script()


@pytest.fixture(scope="module")
def open_splade_house(folder, tokenizer) -> Iterator[House]:
    houses = HouseBuilder(folder, tokenizer)
    models = [houses.model("splade", "embed_sparse"), houses.model("sorter2", "classify", LABELS)]
    yield houses.open(server_config(*models))
    houses.close()


@pytest.fixture
def splade_house(open_splade_house) -> Iterator[House]:
    engine = open_splade_house.engines["splade"]
    engine.script = Script()
    engine.received.clear()
    yield open_splade_house
    engine.script = Script()


def answer(house, path: str, **fields):
    response = house.post(path, fields)
    assert response.status_code == 200, response.text
    return response.json()


def failure(house, path: str, fields: dict) -> tuple[int, str, str]:
    response = house.post(path, fields)
    body = response.json()
    assert set(body) == {"error", "error_type"}
    return response.status_code, body["error_type"], body["error"]


def expit(number: float) -> float:
    return 1 / (1 + float(np.exp(-number)))


# /embed


@pytest.mark.parametrize("inputs", ["a", ["a"], ["a", "b"], [5, 6], [[5, 6], [7]]])
def test_embed_answers_lists_of_numbers(tei_house, inputs):
    vectors = answer(tei_house, "/embed", inputs=inputs)
    (job,) = tei_house.engines["tei-vectors"].received
    expected = [vector_of(item, 8) for item in job.texts or job.ids]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


@pytest.mark.parametrize(("normalize", "length"), [(None, 1), (True, 1), (False, LENGTH)])
def test_embed_normalises_unless_told_not_to(tei_house, normalize, length):
    (vector,) = answer(tei_house, "/embed", inputs="a", normalize=normalize)
    np.testing.assert_allclose(vector, length * vector_of("a", 8), atol=1e-6)


def assert_cut_then_whole(engine: FakeEngine, side: Literal["left", "right"]) -> None:
    cut, whole = engine.received
    assert cut.tokenization == Tokenization(truncate_to=2048, truncation_side=side)
    assert whole.tokenization.truncate_to is None


@pytest.mark.parametrize(
    ("direction", "side"),
    [(None, "right"), ("right", "right"), ("Right", "right"), ("left", "left"), ("Left", "left")],
)
def test_embed_truncates_if_asked_to(tei_house, direction, side):
    answer(tei_house, "/embed", inputs="a", truncate=True, truncation_direction=direction)
    answer(tei_house, "/embed", inputs="a", truncate=None)
    assert_cut_then_whole(tei_house.engines["tei-vectors"], side)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"inputs": []}, (400, "Empty", "`inputs` cannot be empty")),
        ({"inputs": ["a"] * 2049}, (413, "Validation", "inputs: 2049 items")),
        ({"inputs": ["a", ""]}, (422, "Validation", "inputs[1]: must not be empty")),
        ({"inputs": {"a": 1}}, (422, "Validation", "inputs: ")),
        ({}, (422, "Validation", "inputs: is required")),
        ({"inputs": "a", "normalize": "no"}, (422, "Validation", "normalize: ")),
        ({"inputs": "a", "truncation_direction": "up"}, (422, "Validation", "truncation_dire")),
        ({"inputs": "a", "prompt_name": "query"}, (422, "Validation", "prompt_name: ")),
        ({"inputs": "a", "dimensions": 4}, (422, "Validation", "dimensions: ")),
        ({"inputs": [10**6]}, (422, "Validation", "inputs: token id 1000000")),
    ],
)
def test_bad_input_of_embed(tei_house, fields, expected):
    status, kind, message = failure(tei_house, "/embed", fields)
    assert (status, kind) == expected[:2]
    assert message.startswith(expected[2])


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("context_length_exceeded", 413, "Validation"),
        ("overloaded", 429, "Overloaded"),
        ("draining", 503, "Unhealthy"),
        ("row_failed", 424, "Backend"),
    ],
)
def test_the_engines_refusals_in_teis_words(tei_house, code, status, kind):
    script = tei_house.engines["tei-vectors"].script
    script.refusal = Failed(0, code, "input[1] has 9 tokens", "input[1]")
    found = failure(tei_house, "/embed", {"inputs": ["a", "b"]})
    assert found == (status, kind, "inputs[1] has 9 tokens")


def test_a_body_that_is_no_json(tei_house):
    response = tei_house.http.post("/embed", content=b'{"inputs": ')
    assert response.status_code == 422
    assert response.json()["error_type"] == "Validation"


def test_sparse_vectors_need_a_splade_model(tei_house):
    found = failure(tei_house, "/embed_sparse", {"inputs": "a"})
    assert found == (424, "Backend", "Model is not an embedding model with SPLADE pooling")


# /embed_sparse


@pytest.mark.parametrize("inputs", ["a", ["a"], ["a", "nothing", "b"], ["nothing"], [[5, 6], [7]]])
def test_embed_sparse_tells_what_is_not_zero(splade_house, inputs):
    found = answer(splade_house, "/embed_sparse", inputs=inputs)
    (job,) = splade_house.engines["splade"].received
    expected = [
        [{"index": int(index), "value": value} for index, value in sparse_of(item).tolist()]
        for item in job.texts or job.ids
    ]
    assert found == expected
    assert not job.token_states


@pytest.mark.parametrize(
    ("direction", "side"), [(None, "right"), ("right", "right"), ("left", "left"), ("Left", "left")]
)
def test_embed_sparse_truncates_if_asked_to(splade_house, direction, side):
    answer(splade_house, "/embed_sparse", inputs="a", truncate=True, truncation_direction=direction)
    answer(splade_house, "/embed_sparse", inputs="a", truncate=None, prompt_name=None)
    assert_cut_then_whole(splade_house.engines["splade"], side)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"inputs": []}, (400, "Empty", "`inputs` cannot be empty")),
        ({"inputs": ["a"] * 2049}, (413, "Validation", "inputs: 2049 items")),
        ({"inputs": ["a", ""]}, (422, "Validation", "inputs[1]: must not be empty")),
        ({"inputs": ["a", 5]}, (422, "Validation", "inputs")),
        ({"inputs": [10**6]}, (422, "Validation", "inputs: token id 1000000")),
        ({"inputs": None}, (422, "Validation", "inputs: ")),
        ({}, (422, "Validation", "inputs: is required")),
        ({"inputs": "a", "truncate": "yes"}, (422, "Validation", "truncate: ")),
        ({"inputs": "a", "truncation_direction": "up"}, (422, "Validation", "truncation_dire")),
        ({"inputs": "a", "prompt_name": "query"}, (422, "Validation", "prompt_name: ")),
    ],
)
def test_bad_input_of_embed_sparse(splade_house, fields, expected):
    status, kind, message = failure(splade_house, "/embed_sparse", fields)
    assert (status, kind) == expected[:2]
    assert message.startswith(expected[2])


def test_a_text_that_is_too_long_for_a_splade_model(splade_house):
    message = "input[1] has 9 tokens"
    script = splade_house.engines["splade"].script
    script.refusal = Failed(0, "context_length_exceeded", message, "input[1]")
    found = failure(splade_house, "/embed_sparse", {"inputs": ["a", "b"]})
    assert found == (413, "Validation", "inputs[1] has 9 tokens")


def test_an_answer_with_too_many_numbers(splade_house):
    inputs = ["everything"] * 70
    status, kind, message = failure(splade_house, "/embed_sparse", {"inputs": inputs})
    assert (status, kind) == (413, "Validation")
    assert "more than 2097152 entries" in message
    assert len(answer(splade_house, "/embed_sparse", inputs=inputs[:3])[2]) == 30_000


def test_what_a_splade_model_does_not_serve(splade_house):
    for path, body in (
        ("/embed", {"inputs": "a"}),
        ("/embed_all", {"inputs": "a"}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ):
        status, kind, message = failure(splade_house, path, body)
        assert (status, kind) == (424, "Backend")
        assert "SPLADE" in message
        assert "/embed_sparse" in message
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/classify", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        response = splade_house.post(path, {"model": "splade"} | body)
        error = response.json()["error"]
        assert response.status_code == 400
        assert (error["code"], error["param"]) == ("wrong_endpoint", "model")
        assert "model splade serves /embed_sparse, /tokenize, /detokenize" in error["message"]


def test_a_splade_model_tokenizes(splade_house):
    assert answer(splade_house, "/tokenize", model="splade", prompt="a b")["count"] == 3


def test_an_address_alone_is_a_splade_models_endpoint(splade_house):
    found = answer(splade_house, "/", inputs="a")
    assert found == answer(splade_house, "/embed_sparse", inputs="a")


def test_info_tells_of_a_splade_model(splade_house):
    info = splade_house.http.get("/info").json()
    assert info["model_id"] == "splade"
    assert info["model_type"] == {"embedding": {"pooling": "splade"}}
    assert info["max_client_batch_size"] == 2048


def test_an_embedder_goes_before_a_splade_model(builder):
    models = [builder.model("sparse-one", "embed_sparse"), builder.model("dense", "embed")]
    house = builder.open(server_config(*models))
    assert house.http.get("/info").json()["model_id"] == "dense"
    assert answer(house, "/", inputs="a") == answer(house, "/embed", inputs="a")
    assert answer(house, "/embed_sparse", inputs="a")[0][0]["index"] % 1000 == 0


# /embed_all


def test_embed_all_tells_each_token(tei_house, tokenizer):
    texts = ["a", "b c d", "water falls"]
    found = answer(tei_house, "/embed_all", inputs=texts)
    counts = [len(tokenizer.raw.encode(text).ids) for text in texts]
    assert [len(states) for states in found] == counts
    for states, text, count in zip(found, texts, counts, strict=True):
        np.testing.assert_allclose(states, states_of(text, count), atol=1e-5)
    (job,) = tei_house.engines["tei-vectors"].received
    assert job.token_states


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"inputs": []}, 400),
        ({"inputs": ["a"] * 2049}, 413),
        ({"inputs": ["a", ""]}, 422),
        ({"inputs": [[1] * 2048] * 257}, 413),
    ],
)
def test_bad_input_of_embed_all(tei_house, fields, status):
    assert failure(tei_house, "/embed_all", fields)[0] == status


# /similarity


def test_similarity_is_the_cosine(tei_house):
    inputs = {"source_sentence": "a", "sentences": ["b", "c"]}
    parameters = {"truncate": True, "truncation_direction": "left"}
    found = answer(tei_house, "/similarity", inputs=inputs, parameters=parameters)
    expected = [float(vector_of("a", 8) @ vector_of(text, 8)) for text in ("b", "c")]
    assert found == pytest.approx(expected, abs=1e-6)
    (job,) = tei_house.engines["tei-vectors"].received
    assert job.tokenization == Tokenization(truncate_to=2048, truncation_side="left")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"inputs": {"source_sentence": "a", "sentences": []}}, 400),
        ({"inputs": {"source_sentence": "a", "sentences": ["a"] * 2049}}, 413),
        ({"inputs": {"source_sentence": "a"}}, 422),
        ({"inputs": "a"}, 422),
    ],
)
def test_bad_input_of_similarity(tei_house, fields, status):
    assert failure(tei_house, "/similarity", fields)[0] == status


# /predict


def predictions(query: str | None, text: str, *, raw: bool) -> list[tuple[str, float]]:
    logits = logits_of(query, text, len(LABELS))
    scores = logits if raw else np.exp(logits) / np.exp(logits).sum()
    return sorted(zip(LABELS, scores.tolist(), strict=True), key=lambda pair: -pair[1])


def check(found: list[dict], expected: list[tuple[str, float]]) -> None:
    assert [entry["label"] for entry in found] == [label for label, _ in expected]
    scores = [score for _, score in expected]
    assert [entry["score"] for entry in found] == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    ("inputs", "pair"), [("b c", (None, "b c")), (["b c"], (None, "b c")), (["b", "c"], ("b", "c"))]
)
def test_predict_answers_labels_best_first(tei_house, inputs, pair, raw):
    found = answer(tei_house, "/predict", inputs=inputs, raw_scores=raw)
    check(found, predictions(*pair, raw=raw))


def test_predict_takes_texts_and_pairs_in_one_batch(tei_house):
    found = answer(tei_house, "/predict", inputs=[["a b"], ["a", "b"], ["c"], ["c b", "c"]])
    pairs = [(None, "a b"), ("a", "b"), (None, "c"), ("c b", "c")]
    assert len(found) == len(pairs)
    for entry, pair in zip(found, pairs, strict=True):
        check(entry, predictions(*pair, raw=False))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([], (400, "Empty", "`inputs`")),
        ([[]], (422, "Validation", "inputs[0]: 0 texts")),
        ([["a"], ["a", "b", "c"]], (422, "Validation", "inputs[1]: 3 texts")),
        (["a", "b", "c"], (422, "Validation", "inputs: 3 texts")),
        (["a", ["b"]], (422, "Validation", "inputs: ")),
        ([["a"]] * 1001, (413, "Validation", "inputs: 1001")),
        (5, (422, "Validation", "inputs: ")),
    ],
)
def test_bad_input_of_predict(tei_house, inputs, expected):
    status, kind, message = failure(tei_house, "/predict", {"inputs": inputs})
    assert (status, kind) == expected[:2]
    assert message.startswith(expected[2])


def test_predict_names_the_item_that_is_too_long(tei_house):
    script = tei_house.engines["sorter"].script
    script.refusal = Failed(0, "context_length_exceeded", "documents has 9 tokens", "documents")
    found = failure(tei_house, "/predict", {"inputs": [["a", "b"]]})
    assert found == (413, "Validation", "inputs[0] has 9 tokens")


def test_a_rerankers_prediction_is_a_probability(house):
    (found,) = answer(house, "/predict", inputs=["a b", "b"])
    assert found == {"label": "relevant", "score": pytest.approx(expit(0.5))}


# /rerank


def test_rerank_with_texts_is_teis(house):
    texts = ["nothing", "red apples", "red wine"]
    found = answer(house, "/rerank", query="red wine", texts=texts)
    scores = [expit(score_of("red wine", text)) for text in texts]
    assert found == [{"index": i, "score": pytest.approx(scores[i])} for i in (2, 1, 0)]
    found = answer(house, "/rerank", query="red wine", texts=texts, raw_scores=True)
    assert [entry["score"] for entry in found] == [1.0, 0.5, 0.0]
    found = answer(house, "/rerank", query="red wine", texts=texts, return_text=True)
    assert [entry["text"] for entry in found] == texts[::-1]


def test_texts_that_are_null_are_left_out(house):
    body = {"model": "ranker", "query": "a", "texts": None, "documents": ["a"]}
    assert answer(house, "/rerank", **body)["results"] == [{"index": 0, "relevance_score": 1.0}]
    body = {"query": "a", "texts": ["a"], "documents": None}
    assert answer(house, "/rerank", **body) == [{"index": 0, "score": pytest.approx(expit(1))}]


def test_rerank_truncates_texts_beside_the_whole_query(house):
    fields = {"truncate": True, "truncation_direction": "Left"}
    answer(house, "/rerank", query="red wine", texts=["a"], **fields)
    (job,) = house.engines["ranker"].received
    assert job.tokenization == Tokenization(truncate_to=2048, truncation_side="left")


def test_without_a_reranker_the_embedder_ranks(tei_house):
    found = answer(tei_house, "/rerank", query="a", texts=["b", "c"])
    cosines = [float(vector_of("a", 8) @ vector_of(text, 8)) for text in ("b", "c")]
    scores = {entry["index"]: entry["score"] for entry in found}
    assert [scores[0], scores[1]] == pytest.approx(cosines, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"query": "a", "texts": []}, (400, "Empty")),
        ({"query": "a", "texts": ["b"] * 1001}, (413, "Validation")),
        ({"query": "a", "texts": ["b", 3]}, (422, "Validation")),
        ({"texts": ["b"]}, (422, "Validation")),
    ],
)
def test_bad_input_of_rerank_with_texts(house, fields, expected):
    assert failure(house, "/rerank", fields)[:2] == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"query": "a"}',
        b'{"query": "a", "texts": null}',
        b'{"query": "a", "texts": ["b"], "documents": ["b"]}',
    ],
)
def test_any_other_body_of_rerank_gets_our_own_errors(house, content):
    response = house.http.post("/rerank", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"


# Which model


def test_an_address_alone_is_the_models_own_endpoint(tei_house, builder):
    assert answer(tei_house, "/", inputs="a") == answer(tei_house, "/embed", inputs="a")
    house = builder.open(server_config(builder.model("sorter-alone", "classify", LABELS)))
    assert answer(house, "/", inputs="a") == answer(house, "/predict", inputs="a")


def test_several_models_that_fit_are_named(builder):
    models = [builder.model(name, "embed") for name in ("one", "two")]
    models += [builder.model(name, "classify") for name in ("three", "four")]
    models += [builder.model(name, "embed_sparse") for name in ("five", "six")]
    house = builder.open(server_config(*models))
    for path, body, names in (
        ("/embed", {"inputs": "a"}, "one, two"),
        ("/embed_sparse", {"inputs": "a"}, "five, six"),
        ("/predict", {"inputs": "a"}, "three, four"),
        ("/rerank", {"query": "a", "texts": ["b"]}, "three, four"),
    ):
        status, kind, message = failure(house, path, body)
        assert (status, kind) == (424, "Backend")
        assert names in message
    assert house.http.get("/info").status_code == 424


def test_a_generator_alone_fits_nothing(builder):
    house = builder.open(server_config(builder.model("writer-alone", "generate")))
    for path, body in (
        ("/embed", {"inputs": "a"}),
        ("/embed_sparse", {"inputs": "a"}),
        ("/predict", {"inputs": "a"}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ):
        assert failure(house, path, body)[:2] == (424, "Backend")


def test_info_tells_of_the_embedder(tei_house):
    info = tei_house.http.get("/info").json()
    assert info["model_id"] == info["served_model_name"] == "tei-vectors"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["model_dtype"], info["max_input_length"]) == ("float32", 2048)
    assert (info["max_client_batch_size"], info["max_concurrent_requests"]) == (2048, 4096)
    assert {"model_sha", "max_batch_tokens", "version", "sha", "docker_label"} <= set(info)


def test_info_tells_of_a_reranker(builder):
    house = builder.open(server_config(builder.model("ranker-alone", "classify")))
    info = house.http.get("/info").json()
    labels = {"id2label": {"0": "relevant"}, "label2id": {"relevant": 0}}
    assert info["model_type"] == {"reranker": labels}
    assert info["max_client_batch_size"] == 1000
