"""Causal models that rerank, generators and classifiers, give their model card's scores; a
classifier without a template refuses pairs, and classifies texts."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import yaml

from tests.e2e.daemon import Daemon, running
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
RERANKER, CLASSIFIER = "Qwen3-Reranker-0.1B", "Qwen3-Reranker-0.1B-seq-cls"
PIECES = ["query: {query}\n", "passage: {document}", "<|im_end|>"]
OTHER = {"instruction": "Find what is heavy."}


class Rerankers:
    """A daemon with a generator and a classifier whose templates their names tell, a classifier
    (`mine`) without a template, and one (`told`) whose template is in the configuration file."""

    def __init__(self, root: Path) -> None:
        self.generator = save_reranking_qwen3(root / RERANKER)
        self.classifier = save_reranking_classifier(root / CLASSIFIER)
        for name in ("mine", "told"):
            save_reranking_classifier(root / name)
        self.file = root / "penstock.yaml"
        told = {
            RERANKER: {"task": "rerank"},
            "told": {"task": "rerank", "rerank": {"pieces": PIECES}},
        }
        models = [
            {"model": str(root / name), "threads": 1, **told.get(name, {})}
            for name in (RERANKER, CLASSIFIER, "mine", "told")
        ]
        self.file.write_text(yaml.safe_dump({"models": models}))

    daemon: Daemon

    def ask(self, path: str, model: str, **body: Any) -> Any:
        return self.daemon.ask(path, model=model, **body)

    def refusal(self, path: str, model: str, **body: Any) -> httpx.Response:
        answer = httpx.post(f"{self.daemon.url}{path}", json={"model": model, **body})
        assert answer.status_code >= 400
        return answer

    def scores(self, model: str, **fields: Any) -> list[float]:
        """Those of `/v1/score`, in the order of PAIRS."""
        return [each["score"] for each in self.ask("/v1/score", model, **SCORE, **fields)["data"]]

    def assert_ranked(self, model: str, expected: np.ndarray, **fields: Any) -> None:
        """`/v1/rerank` gives the scores that are `expected`, the best first."""
        results = self.ask("/v1/rerank", model, **RERANK, **fields)["results"]
        best = np.argsort(-expected)
        assert [result["index"] for result in results] == best.tolist()
        scores = [result["relevance_score"] for result in results]
        np.testing.assert_allclose(scores, expected[best], atol=1e-5)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Rerankers]:
    rerankers = Rerankers(tmp_path_factory.mktemp("rerankers"))
    with running("--config", str(rerankers.file)) as rerankers.daemon:
        yield rerankers


@pytest.mark.parametrize("asked", [{}, OTHER])
def test_both_give_the_scores_of_their_card(served: Rerankers, asked: dict[str, str]) -> None:
    instruction = asked.get("instruction", INSTRUCTION)
    generated = card_scores(*served.generator, PAIRS, instruction=instruction)
    raw = logits(*served.classifier, PAIRS, **asked)
    likely = probabilities(raw)
    assert likely.max() - likely.min() > 0.1
    for model, expected in ((RERANKER, generated), (CLASSIFIER, likely)):
        served.assert_ranked(model, expected, **asked)
        assert served.scores(model, **asked) == pytest.approx(expected, abs=1e-5)
    found = served.scores(CLASSIFIER, **asked, use_activation=False)
    assert found == pytest.approx(raw, abs=1e-4)


@pytest.mark.parametrize("model", [RERANKER, CLASSIFIER])
def test_a_document_is_cut(served: Rerankers, model: str) -> None:
    short = RERANK | {"documents": DOCUMENTS[-1:], "max_tokens_per_doc": 3}
    cut = served.ask("/v1/rerank", model, **short)
    assert cut["meta"]["warnings"] == ["documents[0] was cut to fit"]


def test_texts_alone_are_for_classifiers(served: Rerankers) -> None:
    refused = served.refusal("/v1/classify", RERANKER, input="a")
    assert refused.json()["error"]["code"] == "wrong_endpoint"
    model, tokenizer = served.classifier
    for name, text in ((CLASSIFIER, DOCUMENTS[0]), ("mine", "Beijing")):
        (label,) = served.ask("/v1/classify", name, input=text)["data"]
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        alone = probabilities(model(ids).logits[0].detach().numpy())
        assert label["probs"] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/rerank", RERANK), ("/v2/rerank", RERANK), ("/v1/score", SCORE), ("/score", SCORE)],
)
def test_without_a_template_pairs_are_refused(served: Rerankers, path: str, body: Any) -> None:
    answer = served.refusal(path, "mine", **body)
    error = answer.json()["error"]
    told = (answer.status_code, error["code"], error["param"])
    assert told == (400, "wrong_endpoint", "model")
    assert "give its template as rerank in the configuration file" in error["message"]
    tei = [("/predict", {"inputs": list(PAIRS[0])}), ("/rerank", {"query": QUERY, "texts": ["a"]})]
    for other, asked in tei:
        said = served.refusal(other, "mine", **asked).text
        assert "give its template as rerank in the configuration" in said


def test_a_template_of_the_configuration_file(served: Rerankers) -> None:
    model, tokenizer = served.classifier
    prompts = [f"query: {QUERY}\npassage: {document}<|im_end|>" for document in DOCUMENTS]
    ids = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
    with torch.inference_mode():
        expected = [model(torch.tensor([own])).logits[0, 0].item() for own in ids]
    assert served.scores("told", use_activation=False) == pytest.approx(expected, abs=1e-4)
    refused = served.refusal("/v1/rerank", "told", **RERANK, instruction="Judge.")
    assert refused.json()["error"]["param"] == "instruction"
