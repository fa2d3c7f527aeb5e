"""A daemon with a causal model that reranks, a generator or a classifier, gives its model card's
scores; a classifier without a template refuses pairs, and classifies texts."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import yaml

from tests.e2e.daemon import running
from tests.workers.heads.reranking_classifier import (
    logits,
    probabilities,
    save_reranking_classifier,
)
from tests.workers.heads.reranking_qwen3 import (
    DOCUMENTS,
    INSTRUCTION,
    QUERY,
    card_scores,
    save_reranking_qwen3,
)

PAIRS = [(QUERY, document) for document in DOCUMENTS]
RERANK = {"query": QUERY, "documents": DOCUMENTS}
SCORE = {"text_1": QUERY, "text_2": DOCUMENTS}


def test_a_daemon_gives_the_scores_of_the_card(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-Reranker-0.1B"
    reference = save_reranking_qwen3(folder)
    with (
        running(str(folder), "--task", "rerank", "--threads", "1") as daemon,
        httpx.Client(base_url=daemon.url, timeout=60) as http,
    ):
        for instruction in (INSTRUCTION, "Find what is heavy."):
            expected = card_scores(*reference, PAIRS, instruction=instruction)
            asked = {} if instruction == INSTRUCTION else {"instruction": instruction}
            results = http.post("/v1/rerank", json=RERANK | asked).json()["results"]
            found = {result["index"]: result["relevance_score"] for result in results}
            assert [found[i] for i in range(len(PAIRS))] == pytest.approx(expected, abs=1e-5)
            assert [result["index"] for result in results] == np.argsort(-expected).tolist()
            data = http.post("/v1/score", json=SCORE | asked).json()["data"]
            assert [each["score"] for each in data] == pytest.approx(expected, abs=1e-5)
        short = RERANK | {"documents": DOCUMENTS[-1:], "max_tokens_per_doc": 3}
        cut = http.post("/v1/rerank", json=short).json()
        assert cut["meta"]["warnings"] == ["documents[0] was cut to fit"]
        refused = http.post("/v1/classify", json={"input": "a"})
        assert refused.json()["error"]["code"] == "wrong_endpoint"


def classify(http: httpx.Client, text: str) -> float:
    (label,) = http.post("/v1/classify", json={"input": text}).json()["data"]
    return label["probs"][0]


def test_a_classifier_gives_the_scores_of_the_card(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-Reranker-0.1B-seq-cls"
    model, tokenizer = save_reranking_classifier(folder)
    with (
        running(str(folder), "--threads", "1") as daemon,
        httpx.Client(base_url=daemon.url, timeout=60) as http,
    ):
        for asked in ({}, {"instruction": "Find what is heavy."}):
            expected = logits(model, tokenizer, PAIRS, **asked)
            likely = probabilities(expected)
            assert likely.max() - likely.min() > 0.1
            results = http.post("/v1/rerank", json=RERANK | asked).json()["results"]
            found = {result["index"]: result["relevance_score"] for result in results}
            assert [found[i] for i in range(len(PAIRS))] == pytest.approx(likely, abs=1e-5)
            assert [result["index"] for result in results] == np.argsort(-expected).tolist()
            data = http.post("/v1/score", json=SCORE | asked).json()["data"]
            assert [each["score"] for each in data] == pytest.approx(likely, abs=1e-5)
            raw = http.post("/v1/score", json=SCORE | asked | {"use_activation": False}).json()
            assert [each["score"] for each in raw["data"]] == pytest.approx(expected, abs=1e-4)
        ranks = http.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS}).json()
        likely = probabilities(logits(model, tokenizer, PAIRS))
        assert {rank["index"]: rank["score"] for rank in ranks} == pytest.approx(
            dict(enumerate(likely.tolist())), abs=1e-5
        )
        (prediction,) = http.post("/predict", json={"inputs": list(PAIRS[0])}).json()
        assert prediction["score"] == pytest.approx(likely[0], abs=1e-5)
        short = RERANK | {"documents": DOCUMENTS[-1:], "max_tokens_per_doc": 3}
        cut = http.post("/v1/rerank", json=short).json()
        assert cut["meta"]["warnings"] == ["documents[0] was cut to fit"]
        own = torch.tensor([tokenizer(DOCUMENTS[0])["input_ids"]])
        alone = probabilities(model(own).logits[0].detach().numpy())
        assert classify(http, DOCUMENTS[0]) == pytest.approx(alone[0], abs=1e-5)


def test_without_a_template_pairs_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    model, tokenizer = save_reranking_classifier(folder)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/rerank": RERANK,
        "/v2/rerank": RERANK,
        "/v1/score": SCORE,
        "/score": SCORE,
    }
    with (
        running(str(folder), "--threads", "1") as daemon,
        httpx.Client(base_url=daemon.url, timeout=60) as http,
    ):
        for path, body in bodies.items():
            answer = http.post(path, json=body | {"model": "mine"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (
                400, "wrong_endpoint", "model"
            )  # fmt: skip
            assert "give its template as rerank in the configuration file" in error["message"]
        predicted = http.post("/predict", json={"inputs": list(PAIRS[0])})
        assert predicted.status_code >= 400
        assert "give its template as rerank in the configuration" in predicted.text
        ranked = http.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS})
        assert ranked.status_code >= 400
        assert "classifier" in http.get("/info").json()["model_type"]
        own = torch.tensor([tokenizer("Beijing")["input_ids"]])
        alone = probabilities(model(own).logits[0].detach().numpy())
        assert classify(http, "Beijing") == pytest.approx(alone[0], abs=1e-5)


def test_a_template_of_the_configuration_file(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    model, tokenizer = save_reranking_classifier(folder)
    pieces = ["query: {query}\n", "passage: {document}", "<|im_end|>"]
    file = tmp_path / "penstock.yaml"
    entry = {"model": str(folder), "task": "rerank", "threads": 1, "rerank": {"pieces": pieces}}
    file.write_text(yaml.safe_dump({"models": [entry]}))
    prompts = [f"query: {QUERY}\npassage: {document}<|im_end|>" for document in DOCUMENTS]
    ids = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
    with torch.inference_mode():
        expected = [model(torch.tensor([own])).logits[0, 0].item() for own in ids]
    with (
        running("--config", str(file)) as daemon,
        httpx.Client(base_url=daemon.url, timeout=60) as http,
    ):
        data = http.post("/v1/score", json=SCORE | {"use_activation": False}).json()["data"]
        assert [each["score"] for each in data] == pytest.approx(expected, abs=1e-4)
        refused = http.post("/v1/rerank", json=RERANK | {"instruction": "Judge."})
        assert refused.json()["error"]["param"] == "instruction"
