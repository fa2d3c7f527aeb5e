"""Vectors, weights and labels of tokens over HTTP, by the arithmetic of PyLate and FlagEmbedding in
float32: ColBERT with markers, masks and skipped tokens; BGE-M3's three; labels of tokens."""

import base64
import json
import string
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
from torch.nn.functional import linear, normalize
from transformers import AutoTokenizer, BertConfig, BertForTokenClassification

from tests.e2e.api.test_encoder_families import TEXTS, pieces
from tests.e2e.daemon import Daemon, running
from tests.e2e.full_daemon import with_tokenizer
from tests.workers.checkpoints import BERT, save_bert, save_randomly
from tests.workers.heads.test_token_outputs import random_layer, save_pylate, weighing_half
from tests.workers.models.encoders import ENCODERS

VOCABULARY = 30_522
QUERY = "What do pandas eat?"
DOCUMENTS = [
    "The giant panda lives on bamboo.",
    "Paris, the capital of France, is a city!",
    "Interest rates rose; (again).",
    "?!",
]
LENGTH = 24
"""Tokens of a query."""


class Served(NamedTuple):
    daemon: Daemon
    colbert: Any
    layer: torch.Tensor
    m3: Any
    heads: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]
    labels: Any
    root: Path


def write_m3(folder: Path) -> tuple[Any, Any]:
    model = ENCODERS["xlm_roberta"].save(folder)
    pieces().save_pretrained(folder)
    ids = pieces()(TEXTS[0])["input_ids"]
    heads = random_layer(64, 64), weighing_half(random_layer(1, 64), model, ids)
    for name, own in zip(("colbert", "sparse"), heads, strict=True):
        torch.save(own, folder / f"{name}_linear.pt")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in kinds.items()
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return model, heads


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    root = tmp_path_factory.mktemp("tokens")
    colbert = save_bert(root / "colbert", vocab_size=VOCABULARY, num_hidden_layers=2)
    with_tokenizer(root / "colbert")
    markers = {"query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    layer = save_pylate(root / "colbert", **markers, query_length=LENGTH, document_length=100)
    m3, heads = write_m3(root / "m3")
    torch.manual_seed(7)
    sizes: dict[str, Any] = BERT | {"vocab_size": VOCABULARY, "num_hidden_layers": 1}
    config = BertConfig(**sizes, id2label={0: "O", 1: "PER", 2: "LOC"})
    labels = save_randomly(BertForTokenClassification(config).eval(), root / "labels")
    with_tokenizer(root / "labels")
    options = [
        word for name in ("colbert", "m3", "labels") for word in ("--served-model-name", name)
    ]
    folders = [str(root / name) for name in ("colbert", "m3", "labels")]
    with running(*folders, *options, "--threads", "1") as daemon:
        yield Served(daemon, colbert, layer, m3, heads, labels, root)


def refusal(served: Served, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{served.daemon.url}{path}", json=body)
    assert answer.status_code == 400
    return answer.json()["error"]


@torch.inference_mode()
def token_vectors(served: Served, text: str, *, query: bool) -> torch.Tensor:
    """PyLate's `encode`: the marker behind the first token, a query's masks, which none sees."""
    tokenizer = AutoTokenizer.from_pretrained(served.root / "colbert")
    marker = tokenizer.convert_tokens_to_ids("[unused0]" if query else "[unused1]")
    most = (LENGTH if query else 100) - 1
    ids = tokenizer(text, truncation=True, max_length=most)["input_ids"]
    ids, seen = [ids[0], marker, *ids[1:]], len(ids) + 1
    if query:
        ids += [tokenizer.mask_token_id] * (LENGTH - len(ids))
    mask = torch.zeros(1, len(ids), dtype=torch.long)
    mask[0, :seen] = 1
    states = served.colbert(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]
    vectors = normalize(states @ served.layer.T, dim=-1)
    skipped = tokenizer.convert_tokens_to_ids(list(string.punctuation))
    return vectors if query else vectors[[token not in skipped for token in ids]]


def max_sim(served: Served, query: str, document: str) -> float:
    products = (
        token_vectors(served, query, query=True) @ token_vectors(served, document, query=False).T
    )
    return products.max(dim=1).values.sum().item()


def test_token_vectors_of_queries_and_documents(served: Served) -> None:
    for query, fields in ((False, {}), (True, {"input_type": "query"})):
        data = served.daemon.ask("/pooling", model="colbert", input=DOCUMENTS, **fields)["data"]
        for entry, text in zip(data, DOCUMENTS, strict=True):
            expected = token_vectors(served, text, query=query).numpy()
            np.testing.assert_allclose(np.array(entry["data"]), expected, atol=1e-5)


@pytest.mark.parametrize("query", [QUERY, "pandas " * 60])
def test_max_sim(served: Served, query: str) -> None:
    """A query is cut to its length; a document of punctuation alone keeps its special tokens."""
    expected = [max_sim(served, query, document) for document in DOCUMENTS]
    answer = served.daemon.ask("/v1/score", model="colbert", text_1=query, text_2=DOCUMENTS)
    np.testing.assert_allclose([entry["score"] for entry in answer["data"]], expected, atol=2e-5)
    answer = served.daemon.ask("/v1/rerank", model="colbert", query=query, documents=DOCUMENTS)
    ranks = [entry["index"] for entry in answer["results"]]
    assert ranks == np.argsort(-np.array(expected), kind="stable").tolist()


def test_scores_of_pairs(served: Served) -> None:
    answer = served.daemon.ask(
        "/v1/score", model="colbert", text_1=DOCUMENTS[::-1], text_2=DOCUMENTS
    )
    expected = [max_sim(served, *pair) for pair in zip(DOCUMENTS[::-1], DOCUMENTS, strict=True)]
    np.testing.assert_allclose([entry["score"] for entry in answer["data"]], expected, atol=2e-5)


def test_a_text_of_documents_that_is_too_long_is_refused_or_cut(served: Served) -> None:
    long = "panda " * 200
    fields = {"model": "colbert", "query": QUERY}
    error = refusal(served, "/v1/rerank", **fields, documents=["a", long])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "documents[1]")
    answer = served.daemon.ask("/v1/rerank", **fields, documents=[long], truncation=True)
    expected = max_sim(served, QUERY, long)
    assert answer["results"][0]["relevance_score"] == pytest.approx(expected, abs=2e-5)


@torch.inference_mode()
def all_vectors(served: Served, text: str) -> tuple[Any, dict[str, float], Any]:
    """FlagEmbedding's `dense_vecs`, `lexical_weights` and `colbert_vecs`."""
    tokenizer = AutoTokenizer.from_pretrained(served.root / "m3")
    ids = tokenizer(text)["input_ids"]
    states = served.m3(torch.tensor([ids])).last_hidden_state[0]
    colbert, sparse = served.heads
    weights = linear(states, **sparse).relu()[:, 0].tolist()
    unused = {getattr(tokenizer, f"{name}_token_id") for name in ("cls", "eos", "pad", "unk")}
    lexical: dict[str, float] = {}
    for token, weight in zip(ids, weights, strict=True):
        if token not in unused and weight > lexical.get(str(token), 0):
            lexical[str(token)] = weight
    vectors = normalize(linear(states[1:], **colbert), dim=-1)
    return normalize(states[0], dim=-1).numpy(), lexical, vectors.numpy()


def test_all_vectors_of_one_request(served: Served) -> None:
    wanted = {"return_sparse": True, "return_colbert_vecs": True}
    texts = [TEXTS[0], TEXTS[1], TEXTS[3], f"{TEXTS[0]} {TEXTS[0]}"]
    both = served.daemon.ask("/v1/embeddings", model="m3", input=texts, **wanted)
    alone = served.daemon.ask("/v1/embeddings", model="m3", input=texts)
    assert both["usage"] == alone["usage"]
    found_weights = 0
    for entry, dense_alone, text in zip(both["data"], alone["data"], texts, strict=True):
        dense, lexical, vectors = all_vectors(served, text)
        assert entry["embedding"] == dense_alone["embedding"]
        np.testing.assert_allclose(entry["embedding"], dense, atol=1e-5)
        np.testing.assert_allclose(entry["colbert_vecs"], vectors, atol=1e-5)
        assert entry["lexical_weights"] == pytest.approx(lexical, abs=2e-5)
        found_weights += len(lexical)
    assert found_weights
    sparse = served.daemon.ask("/v1/embeddings", model="m3", input=texts, return_sparse=True)
    for entry, other in zip(sparse["data"], both["data"], strict=True):
        assert entry["lexical_weights"] == other["lexical_weights"]
        assert "colbert_vecs" not in entry
    coded = served.daemon.ask(
        "/v1/embeddings", model="m3", input=texts, encoding_format="base64", **wanted
    )
    for entry, other in zip(coded["data"], both["data"], strict=True):
        numbers = np.frombuffer(base64.b64decode(entry["colbert_vecs"]), np.float32)
        assert numbers.tolist() == np.ravel(np.float32(other["colbert_vecs"])).tolist()


def test_vllms_tasks_of_bge_m3(served: Served) -> None:
    ask = served.daemon.ask
    wanted = {"return_sparse": True, "return_colbert_vecs": True}
    (all_of,) = ask("/v1/embeddings", model="m3", input=TEXTS[0], **wanted)["data"]
    (vectors,) = ask("/pooling", model="m3", input=TEXTS[0], task="token_embed")["data"]
    assert vectors["data"] == all_of["colbert_vecs"]
    (weights,) = ask("/pooling", model="m3", input=TEXTS[0], task="token_classify")["data"]
    assert len(weights["data"]) == len(all_of["colbert_vecs"]) - 1, "the last token is special"
    assert max(weights["data"]) == pytest.approx(max(all_of["lexical_weights"].values()))


def test_labels_of_tokens(served: Served) -> None:
    tokenizer = AutoTokenizer.from_pretrained(served.root / "labels")
    data = served.daemon.ask("/pooling", model="labels", input=DOCUMENTS)["data"]
    entries = served.daemon.ask("/v1/classify", model="labels", input=DOCUMENTS)["data"]
    for pooled, entry, text in zip(data, entries, DOCUMENTS, strict=True):
        ids = tokenizer(text)["input_ids"]
        with torch.inference_mode():
            expected = served.labels(torch.tensor([ids])).logits[0].softmax(dim=-1).numpy()
        np.testing.assert_allclose(pooled["data"], expected, atol=1e-5)
        assert np.array_equal(np.float32(entry["probs"]), np.float32(pooled["data"]))
        assert entry["label"] == [("O", "PER", "LOC")[row] for row in expected.argmax(axis=1)]


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/v1/embeddings", {"model": "colbert", "input": "a"}, "model colbert serves "),
        (
            "/v1/rerank",
            {"model": "labels", "query": "a", "documents": ["a"]},
            "model labels serves ",
        ),
        (
            "/pooling",
            {"model": "colbert", "input": "a", "task": "embed"},
            "task: model colbert serves",
        ),
        (
            "/pooling",
            {"model": "labels", "input": "a", "task": "classify"},
            "task: model labels serves",
        ),
        (
            "/pooling",
            {"model": "m3", "input": "a", "task": "classify"},
            "task: model m3 serves embed",
        ),
        ("/v1/embeddings", {"model": "m3", "input": "a", "return_sparse": 1}, "return_sparse"),
    ],
)
def test_what_a_model_does_not_serve_is_named(
    served: Served, path: str, fields: Any, said: str
) -> None:
    assert refusal(served, path, **fields)["message"].startswith(said)
